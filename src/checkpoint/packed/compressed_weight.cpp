// compressed-tensors' integer layouts: pack-quantized (32-bit words along the inputs) and int-quantized.
#include <cstring>

#include "base/error.h"
#include "checkpoint/packed/packed_weight.h"

namespace quatrain {
namespace {

class CompressedWeight : public PackedWeight {
 public:
  CompressedWeight(const TensorSource& source, const std::string& linear, const PackedConfig& config)
      : source_(source) {
    const PackedScheme& scheme = config.scheme_of(linear);
    bits_ = scheme.bits;
    per_word_ = 32 / bits_;
    activation = scheme.activation;
    where_ = fmt::format("{}: {}", source.path().string(), linear);
    codes_ = source.find(linear + ".weight_packed");
    words_ = codes_ != nullptr;
    if (!words_) codes_ = &packed_part(source, linear, "weight");
    type = fmt::format("compressed-tensors {}-bit", bits_);
    scales_ = &packed_part(source, linear, "weight_scale");
    find_shape(linear);
    group_ = scheme.group >= columns ? 0 : scheme.group;
    groups_ = group_ == 0 ? 1 : (columns + group_ - 1) / group_;
    require_packed(source, *codes_, {words_ ? "I32" : "I8"},
                   {rows, words_ ? (columns + per_word_ - 1) / per_word_ : columns}, "codes");
    if (groups_ == 1 && scales_->shape == std::vector<int64_t>{rows})  // a scale for each row, flat
      require_packed(source, *scales_, {"F16", "BF16", "F32"}, {rows}, "a scale for each row");
    else
      require_packed(source, *scales_, {"F16", "BF16", "F32"}, {rows, groups_}, "a scale for each group");
    zeros_ = source.find(linear + ".weight_zero_point");
    require(scheme.symmetric || zeros_ != nullptr,
            "{}: the config says asymmetric, but weight_zero_point is missing", where_);
    zero_words_ = zeros_ != nullptr && zeros_->type == "I32";
    if (zero_words_)
      require_packed(source, *zeros_, {"I32"}, {(rows + per_word_ - 1) / per_word_, groups_},
                     "packed zeros of each group");
    else if (zeros_ != nullptr)
      require_packed(source, *zeros_, {"I8"}, {rows, groups_}, "a zero for each group");
    if (scheme.symmetric && zeros_ != nullptr) {  // some programs write them all the same
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t g = 0; g < groups_; ++g)
          require(zero(row, g) == 0, "{}: the config says symmetric, but the zero of row {}, group {} is {}",
                  where_, row, g, zero(row, g));
      zeros_ = nullptr;
    }
    if (const TensorInfo* order = source.find(linear + ".weight_g_idx")) set_order(source, *order);
    code_bits_ = zeros_ == nullptr ? bits_ : bits_ == 4 ? 8 : 0;
    if (!words_ && bits_ == 4) check_nibbles();
  }

 protected:
  void unpack(int64_t begin, int64_t count, int16_t* out) const override {
    const std::span<const std::byte> bytes = source_.raw(*codes_);
    const uint32_t mask = (1u << bits_) - 1;
    const int16_t middle = static_cast<int16_t>(1 << (bits_ - 1));
    const int64_t row_words = (columns + per_word_ - 1) / per_word_;
    const int64_t width = group_ == 0 ? columns : group_;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = begin + i;
      for (int64_t k = 0; k < columns; ++k) {
        int16_t code;
        if (words_) {
          const uint32_t word = packed_word(bytes, row * row_words + k / per_word_);
          code =
              static_cast<int16_t>(static_cast<int16_t>((word >> (bits_ * (k % per_word_))) & mask) - middle);
        } else {
          code = static_cast<int8_t>(bytes[static_cast<size_t>(row * columns + k)]);
        }
        if (zeros_ != nullptr)
          code = static_cast<int16_t>(code -
                                      zero(row, order_.empty() ? k / width : order_[static_cast<size_t>(k)]));
        out[i * columns + k] = code;
      }
    }
  }

  void scales(int64_t begin, int64_t count, float* out) const override {
    read_elements(source_, *scales_, begin * groups_, count * groups_, out);
  }

 private:
  // weight_shape where there is one; a lying one is found against the packed words.
  void find_shape(const std::string& linear) {
    require(codes_->shape.size() == 2 && codes_->shape[0] > 0 && codes_->shape[1] > 0 &&
                codes_->shape[1] < (int64_t{1} << 31),
            "{}: the codes are [{}], not a matrix", where_, fmt::join(codes_->shape, ", "));
    rows = codes_->shape[0];
    columns = codes_->shape[1] * (words_ ? per_word_ : 1);
    const TensorInfo* shape = source_.find(linear + ".weight_shape");
    if (shape == nullptr || !words_) return;
    require((shape->type == "I64" || shape->type == "I32") && shape->shape == std::vector<int64_t>{2},
            "{}: weight_shape is {} [{}], not two integers", where_, shape->type,
            fmt::join(shape->shape, ", "));
    float sizes[2];  // exact below 2^24; wider than any row
    read_elements(source_, *shape, 0, 2, sizes);
    const float packed = static_cast<float>(columns);
    require(sizes[0] == static_cast<float>(rows) && sizes[1] <= packed &&
                sizes[1] > packed - static_cast<float>(per_word_),
            "{}: the config says {} bits, so weight_packed [{}] holds up to {} x {} codes; weight_shape says "
            "{} x {}; the config or the file is wrong",
            where_, bits_, fmt::join(codes_->shape, ", "), rows, columns, sizes[0], sizes[1]);
    columns = static_cast<int64_t>(sizes[1]);
  }

  int16_t zero(int64_t row, int64_t group) const {
    const std::span<const std::byte> bytes = source_.raw(*zeros_);
    if (!zero_words_) return static_cast<int8_t>(bytes[static_cast<size_t>(row * groups_ + group)]);
    const uint32_t word = packed_word(bytes, row / per_word_ * groups_ + group);
    const uint32_t code = (word >> (bits_ * (row % per_word_))) & ((1u << bits_) - 1);
    return static_cast<int16_t>(static_cast<int>(code) - (1 << (bits_ - 1)));
  }

  // Four-bit codes that lie in bytes.
  void check_nibbles() const {
    const std::span<const std::byte> bytes = source_.raw(*codes_);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto code = static_cast<int8_t>(bytes[i]);
      require(code >= -8 && code <= 7, "{}: the config says 4 bits, but row {}, column {} holds {}", where_,
              static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns, int{code});
    }
  }

  const TensorSource& source_;
  const TensorInfo *codes_ = nullptr, *zeros_ = nullptr, *scales_ = nullptr;
  bool words_ = true, zero_words_ = false;  // 32-bit words, or a byte each
  int bits_ = 4;
  int64_t per_word_ = 8;
};

}  // namespace

std::unique_ptr<PackedWeight> compressed_weight(const TensorSource& source, const std::string& linear,
                                                const PackedConfig& config) {
  return std::make_unique<CompressedWeight>(source, linear, config);
}

}  // namespace quatrain
