// Activation quantisation of 64 rows, against a copy of the same rows:
//   activation_quantize_bench [ISA]
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "machine.h"
#include "ops/activation_quantize.h"
#include "ops/cpu/isa.h"

namespace quatrain::bench {
namespace {

constexpr int64_t kRows = 64;
constexpr int kRounds = 50;

void run(int64_t width, const ActivationPolicy& policy) {
  ThreadPool pool(1);
  SplitMix64 random(1);
  std::vector<float> x(kRows * width), y(kRows * width, 0.0f);
  for (float& value : x) value = static_cast<float>(random.normal());
  ops::QuantizedActivations out;
  double time = std::numeric_limits<double>::infinity(), copy_time = time;
  for (int round = 0; round < kRounds; ++round) {
    copy_time =
        std::min(copy_time, seconds([&] { std::memcpy(y.data(), x.data(), x.size() * sizeof(float)); }));
    time = std::min(time, seconds([&] {
                      ops::quantize_activations(x.data(), kRows, width, width, policy, "bench", pool, out);
                    }));
  }
  fmt::print("width {:5}, A{}, groups of {:3}: {:6.2f} us a row, {:.1f} values a ns, {:4.1f} x the copy\n",
             width, policy.bits, policy.group, time / kRows * 1e6,
             static_cast<double>(kRows * width) / time * 1e-9, time / copy_time);
}

}  // namespace
}  // namespace quatrain::bench

int main(int count, char** arguments) {
  using namespace quatrain;
  try {
    if (count > 1) setenv("QUATRAIN_ISA", arguments[1], 1);
    fmt::print("isa {}, 1 thread, best of {} rounds\n", ops::name_of(ops::active_isa()), bench::kRounds);
    for (const int64_t width : {576, 2048, 8192})
      for (const int64_t group : {32, 64, 128, 0})
        for (const int bits : {4, 8}) bench::run(width, {bits, group, false});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
