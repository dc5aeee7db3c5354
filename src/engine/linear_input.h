// From rows of FP32 to what a product reads: gate, transform and quantise in one pass over the rows, while
// they are in the cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "engine/operator_clock.h"
#include "engine/transform.h"
#include "ops/activation_quantize.h"
#include "ops/gated_activation.h"

namespace quatrain {

/// Rows of values, `stride` floats apart; with a gate a row is [gate, up], and its values are f(gate) * up.
struct LinearInput {
  const float* x = nullptr;
  int64_t stride = 0;
  std::optional<ops::GateFunction> gate;
  int64_t first_token = 0;  // number of the first row in messages
};

/// Reused by every product of an engine, so that a decode step allocates nothing.
struct LinearScratch {
  OperatorClock clock;
  AlignedBuffer<float> values;  // gated and transformed
  ops::QuantizedActivations quantized;
  int threads = 1;  // that work on these rows
};

/// What happens to an input before a product.
struct InputSteps {
  const OnlineTransform* transform = nullptr;
  const ActivationPolicy* codes = nullptr;  // nullptr: the product takes FP32
  std::string_view site;                    // for messages
  Operator product = Operator::Qkv;         // whose time the transform is
};

/// Time that threads spend in a part of a loop, added up over them.
class TransformTime {
 public:
  template <typename Work>
  void add(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  }
  double seconds() const { return static_cast<double>(nanoseconds_) * 1e-9; }

 private:
  std::atomic<int64_t> nanoseconds_{0};
};

/// Runs the steps over `tokens` rows of `width` values: the codes go to scratch.quantized, and the FP32
/// values before them (a view of the input itself where nothing changes it) are returned. A token's result
/// does not depend on the others.
LinearInput prepare_input(const LinearInput& input, int64_t tokens, int64_t width, const InputSteps& steps,
                          ThreadPool& pool, LinearScratch& scratch);

/// How rows are shared out to threads where columns in units can be too: all columns of some rows, or, of few
/// rows, parts of them. Calls body(first row, rows, first unit, last unit).
template <typename Body>
void for_row_parts(int64_t rows, int64_t units, ThreadPool& pool, const Body& body) {
  constexpr int64_t kRows = 12;  // what the block transforms take at once: twice 6, four times 3
  const int64_t row_items = (rows + kRows - 1) / kRows;
  const int64_t parts = row_items < 2 * pool.threads() ? std::min<int64_t>(units, 2 * pool.threads()) : 1;
  pool.parallel_for(row_items * parts, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / parts * kRows, part = item % parts;
      body(row, std::min(kRows, rows - row), part * units / parts, (part + 1) * units / parts);
    }
  });
}

}  // namespace quatrain
