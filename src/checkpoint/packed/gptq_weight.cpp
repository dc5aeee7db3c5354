// GPTQ's layout. Version 1 stores zero - 1 and readers take (stored + 1) mod 2^bits; version 2 stores zero.
#include "base/error.h"
#include "checkpoint/packed/packed_weight.h"

namespace quatrain {
namespace {

class GptqWeight : public PackedWeight {
 public:
  GptqWeight(const TensorSource& source, const std::string& linear, const PackedConfig& config)
      : source_(source), bits_(config.schemes.front().bits) {
    const PackedScheme& scheme = config.schemes.front();
    where_ = fmt::format("{}: {}", source.path().string(), linear);
    type = fmt::format("GPTQ {}-bit", bits_);
    codes_ = &packed_part(source, linear, "qweight");
    zeros_ = &packed_part(source, linear, "qzeros");
    scales_ = &packed_part(source, linear, "scales");
    per_word_ = 32 / bits_;
    require(codes_->shape.size() == 2 && codes_->shape[0] > 0 && codes_->shape[1] > 0 &&
                codes_->shape[0] < (int64_t{1} << 31) && codes_->shape[1] % per_word_ == 0,
            "{}: qweight is [{}], not [inputs / {}, outputs] with outputs a multiple of {}", where_,
            fmt::join(codes_->shape, ", "), per_word_, per_word_);
    columns = codes_->shape[0] * per_word_;
    rows = codes_->shape[1];
    group_ = scheme.group >= columns ? 0 : scheme.group;
    groups_ = group_ == 0 ? 1 : (columns + group_ - 1) / group_;
    require_packed(source, *codes_, {"I32"}, {columns / per_word_, rows}, "codes");
    if (const TensorInfo* order = source.find(linear + ".g_idx")) {
      require(order->shape == std::vector<int64_t>{columns},
              "{}: the config says {} bits, so qweight [{}] has {} inputs; g_idx [{}] has others; the config "
              "or the file is wrong",
              where_, bits_, fmt::join(codes_->shape, ", "), columns, fmt::join(order->shape, ", "));
      require_packed(source, *scales_, {"F16", "BF16", "F32"}, {groups_, rows}, "a scale for each group");
      set_order(source, *order);
    }
    require_packed(source, *scales_, {"F16", "BF16", "F32"}, {groups_, rows}, "a scale for each group");
    require_packed(source, *zeros_, {"I32"}, {groups_, rows / per_word_}, "a zero for each group");
    find_zero(scheme.symmetric, config.stored_zero_minus_one);
  }

 protected:
  void unpack(int64_t begin, int64_t count, int16_t* out) const override {
    const std::span<const std::byte> words = source_.raw(*codes_);
    const uint32_t mask = (1u << bits_) - 1;
    std::vector<int16_t> zeros(static_cast<size_t>(groups_ * count));
    for (int64_t g = 0; g < groups_; ++g)
      for (int64_t i = 0; i < count; ++i) zeros[static_cast<size_t>(g * count + i)] = zero(g, begin + i);
    const int64_t width = group_ == 0 ? columns : group_;
    for (int64_t r = 0; r < columns / per_word_; ++r)
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t word = packed_word(words, r * rows + begin + i);
        for (int64_t j = 0; j < per_word_; ++j) {
          const int64_t k = r * per_word_ + j;
          const int64_t g = order_.empty() ? k / width : order_[static_cast<size_t>(k)];
          const auto code = static_cast<int16_t>((word >> (bits_ * j)) & mask);
          out[i * columns + k] = static_cast<int16_t>(code - zeros[static_cast<size_t>(g * count + i)]);
        }
      }
  }

  void scales(int64_t begin, int64_t count, float* out) const override {
    read_scale_columns(source_, *scales_, rows, begin, count, out);
  }

 private:
  uint32_t stored_zero(int64_t group, int64_t row) const {
    const uint32_t word = packed_word(source_.raw(*zeros_), (group * rows + row) / per_word_);
    return (word >> (bits_ * (row % per_word_))) & ((1u << bits_) - 1);
  }

  int16_t zero(int64_t group, int64_t row) const {
    return static_cast<int16_t>((stored_zero(group, row) + add_) & ((1u << bits_) - 1));
  }

  // A symmetric matrix has one zero, 2^(bits-1), so what is stored tells the version. Some writers label
  // version 2 zeros as version 1: then the file is right and the label wrong.
  void find_zero(bool symmetric, bool minus_one) {
    const uint32_t middle = 1u << (bits_ - 1), first = stored_zero(0, 0);
    bool constant = true;
    for (int64_t g = 0; constant && g < groups_; ++g)
      for (int64_t row = 0; constant && row < rows; ++row) constant = stored_zero(g, row) == first;
    add_ = minus_one ? 1 : 0;
    if (symmetric) {
      require(constant && (first == middle || first == middle - 1),
              "{}: the config says symmetric, but the zeros are not all {} (version 2) or {} (version 1)",
              where_, middle, middle - 1);
      const uint32_t add = first == middle ? 0 : 1;
      if (add != add_)
        note = fmt::format(
            "the zeros are those of GPTQ version {}, though the config says version {}; they are "
            "read as what they are",
            add == 1 ? 1 : 2, add == 1 ? 2 : 1);
      add_ = add;
    }
    const bool centred = constant && ((first + add_) & ((1u << bits_) - 1)) == middle;
    code_bits_ = centred ? bits_ : bits_ == 4 ? 8 : 0;
  }

  const TensorSource& source_;
  const TensorInfo *codes_ = nullptr, *zeros_ = nullptr, *scales_ = nullptr;
  int bits_;
  int64_t per_word_ = 8;
  uint32_t add_ = 1;
};

}  // namespace

std::unique_ptr<PackedWeight> gptq_weight(const TensorSource& source, const std::string& linear,
                                          const PackedConfig& config) {
  return std::make_unique<GptqWeight>(source, linear, config);
}

}  // namespace quatrain
