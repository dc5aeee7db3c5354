// Hadamard transforms of 64 rows at the widths of published models, against a copy of the same rows:
//   hadamard_bench [ISA]
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "machine.h"
#include "ops/cpu/isa.h"
#include "ops/hadamard.h"

namespace quatrain::bench {
namespace {

constexpr int64_t kRows = 64;
constexpr int kRounds = 30;

void run(int64_t width, int64_t order) {
  ThreadPool pool(1);
  const ops::HadamardTransform transform(width, order, 1, false);
  std::vector<float> x(kRows * width, 1.0f), y(kRows * width, 0.0f);
  double transform_time = std::numeric_limits<double>::infinity(), copy_time = transform_time;
  for (int round = 0; round < kRounds; ++round) {
    copy_time =
        std::min(copy_time, seconds([&] { std::memcpy(y.data(), x.data(), x.size() * sizeof(float)); }));
    transform_time =
        std::min(transform_time, seconds([&] { transform.apply(y.data(), kRows, width, pool); }));
  }
  fmt::print("width {:5}, order {:5} = {:3} * 2^{:<2}: {:8.2f} us a row, {:5.1f} x the copy\n", width, order,
             factor_hadamard_order(order).base, factor_hadamard_order(order).power,
             transform_time / kRows * 1e6, transform_time / copy_time);
}

}  // namespace
}  // namespace quatrain::bench

int main(int count, char** arguments) {
  using namespace quatrain;
  try {
    if (count > 1) setenv("QUATRAIN_ISA", arguments[1], 1);
    fmt::print("isa {}, 1 thread, best of {} rounds\n", ops::name_of(ops::active_isa()), bench::kRounds);
    for (const int64_t width : {576, 1536, 2048, 4096, 8192, 14336, 8960, 11008, 18944})
      bench::run(width, width);
    for (const int64_t width : {1536, 8192, 14336}) bench::run(width, 128);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
