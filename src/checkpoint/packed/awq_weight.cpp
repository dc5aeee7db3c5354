// AWQ's layout for its "gemm" kernels: eight columns a word, in the order that the kernel unpacks them.
#include "base/error.h"
#include "checkpoint/packed/packed_weight.h"

namespace quatrain {
namespace {

constexpr int64_t kPerWord = 8;
// Which nibble of a word holds column c of its eight: the inverse of 0, 2, 4, 6, 1, 3, 5, 7.
constexpr int kNibbleOfColumn[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

class AwqWeight : public PackedWeight {
 public:
  AwqWeight(const TensorSource& source, const std::string& linear, const PackedConfig& config)
      : source_(source) {
    where_ = fmt::format("{}: {}", source.path().string(), linear);
    type = "AWQ 4-bit";
    codes_ = &packed_part(source, linear, "qweight");
    zeros_ = &packed_part(source, linear, "qzeros");
    scales_ = &packed_part(source, linear, "scales");
    require(codes_->shape.size() == 2 && codes_->shape[0] > 0 && codes_->shape[1] > 0 &&
                codes_->shape[1] < (int64_t{1} << 31),
            "{}: qweight is [{}], not [inputs, outputs / 8]", where_, fmt::join(codes_->shape, ", "));
    columns = codes_->shape[0];
    rows = codes_->shape[1] * kPerWord;
    const int64_t group = config.schemes.front().group;
    group_ = group >= columns ? 0 : group;
    groups_ = group_ == 0 ? 1 : (columns + group_ - 1) / group_;
    require_packed(source, *codes_, {"I32"}, {columns, rows / kPerWord}, "codes");
    require_packed(source, *zeros_, {"I32"}, {groups_, rows / kPerWord}, "a zero for each group");
    require_packed(source, *scales_, {"F16", "BF16", "F32"}, {groups_, rows}, "a scale for each group");
    bool centred = true;
    for (int64_t i = 0; centred && i < groups_ * rows / kPerWord; ++i)
      centred = packed_word(source.raw(*zeros_), i) == 0x88888888u;
    code_bits_ = centred ? 4 : 8;
  }

 protected:
  void unpack(int64_t begin, int64_t count, int16_t* out) const override {
    const std::span<const std::byte> words = source_.raw(*codes_);
    const int64_t width = group_ == 0 ? columns : group_;
    std::vector<int16_t> zeros(static_cast<size_t>(count));
    for (int64_t k = 0; k < columns; ++k) {
      if (k % width == 0)
        for (int64_t i = 0; i < count; ++i)
          zeros[static_cast<size_t>(i)] = nibble(source_.raw(*zeros_), k / width, begin + i);
      for (int64_t i = 0; i < count; ++i)
        out[i * columns + k] =
            static_cast<int16_t>(nibble(words, k, begin + i) - zeros[static_cast<size_t>(i)]);
    }
  }

  void scales(int64_t begin, int64_t count, float* out) const override {
    read_scale_columns(source_, *scales_, rows, begin, count, out);
  }

 private:
  int16_t nibble(std::span<const std::byte> words, int64_t line, int64_t row) const {
    const uint32_t word = packed_word(words, (line * rows + row) / kPerWord);
    return static_cast<int16_t>((word >> (4 * kNibbleOfColumn[row % kPerWord])) & 15);
  }

  const TensorSource& source_;
  const TensorInfo *codes_ = nullptr, *zeros_ = nullptr, *scales_ = nullptr;
};

}  // namespace

std::unique_ptr<PackedWeight> awq_weight(const TensorSource& source, const std::string& linear,
                                         const PackedConfig& config) {
  return std::make_unique<AwqWeight>(source, linear, config);
}

}  // namespace quatrain
