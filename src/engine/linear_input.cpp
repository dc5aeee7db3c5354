#include "engine/linear_input.h"

#include <algorithm>
#include <numeric>

namespace quatrain {
namespace {

// Values below which a second thread does not pay, where there is no matrix to read: a few microseconds.
constexpr int64_t kSerialValues = 16384;

class Preparation {
 public:
  Preparation(const LinearInput& input, int64_t width, const InputSteps& steps, LinearScratch& scratch)
      : input_(input), width_(width), steps_(steps), scratch_(scratch) {}

  bool changes() const { return input_.gate || steps_.transform != nullptr; }

  // Columns that a part of a row is a whole number of: blocks of the transform and groups of the codes.
  int64_t unit() const {
    int64_t unit = 1;
    if (steps_.transform != nullptr) unit = width_ / steps_.transform->parts();
    if (steps_.codes != nullptr) unit = std::lcm(unit, scratch_.quantized.group);
    return std::min(unit, width_);
  }

  // Columns [first, last) of rows [row, row + count).
  void run(int64_t row, int64_t count, int64_t first, int64_t last) {
    const float* x = input_.x + row * input_.stride;
    int64_t stride = input_.stride;
    if (changes()) {
      float* values = scratch_.values.data() + row * width_;
      for (int64_t t = 0; t < count; ++t) {
        const float* from = x + t * stride + first;
        float* to = values + t * width_ + first;
        if (input_.gate)
          ops::gated_activation(*input_.gate, from, from + width_, last - first, to);
        else
          std::copy_n(from, last - first, to);
      }
      if (steps_.transform != nullptr) {
        const int64_t part = width_ / steps_.transform->parts();
        time_.add([&] { steps_.transform->apply(values, count, width_, first / part, last / part); });
      }
      x = values;
      stride = width_;
    }
    if (steps_.codes != nullptr)
      for (int64_t t = 0; t < count; ++t)
        ops::quantize_activation_columns(x + t * stride, row + t, first, last, *steps_.codes, steps_.site,
                                         scratch_.quantized);
  }

  double transform_seconds() const { return time_.seconds(); }

 private:
  const LinearInput& input_;
  int64_t width_;
  const InputSteps& steps_;
  LinearScratch& scratch_;
  TransformTime time_;
};

}  // namespace

LinearInput prepare_input(const LinearInput& input, int64_t tokens, int64_t width, const InputSteps& steps,
                          ThreadPool& pool, LinearScratch& scratch) {
  Preparation work(input, width, steps, scratch);
  if (steps.codes != nullptr) {
    ops::shape_activations(tokens, width, *steps.codes, scratch.quantized);
    scratch.quantized.first_token = input.first_token;
  }
  if (work.changes()) scratch.values.resize(static_cast<size_t>(tokens * width));
  const LinearInput result =
      work.changes() ? LinearInput{scratch.values.data(), width, {}, input.first_token} : input;
  if (!work.changes() && steps.codes == nullptr) return result;

  const int64_t unit = work.unit();
  if (steps.transform == nullptr && tokens * width < kSerialValues)
    work.run(0, tokens, 0, width);
  else
    for_row_parts(tokens, (width + unit - 1) / unit, pool,
                  [&](int64_t row, int64_t count, int64_t first, int64_t last) {
                    work.run(row, count, first * unit, std::min(width, last * unit));
                  });
  const Operator rest = input.gate ? Operator::Activation : Operator::Quantize;
  if (steps.transform == nullptr)
    scratch.clock.lap(rest);
  else
    scratch.clock.lap(rest, transform_before(steps.product), work.transform_seconds() / scratch.threads);
  return result;
}

}  // namespace quatrain
