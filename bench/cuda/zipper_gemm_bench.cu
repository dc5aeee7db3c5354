// The zipper GEMM against cuBLAS BF16 and the copy bandwidth of the same run, on the linears of Llama-3-8B.
// Usage: zipper_gemm_cuda_bench [--linear NAME] [--sweep] [--plan NAME] [tokens...]
// --sweep times every plan, to fill the table of heuristics: alone/in a chain of dependent launches. --plan:
// the one of this name only. Names: tile's tokens; then s, shares that meet in memory, or cC/T, clusters of C
// CTAs with T tiles each. "table" is what the table says.
#include <cstdlib>
#include <string>

#include "measure.h"
#include "ops/cuda/zipper_gemm.h"
#include "random_planes.h"

namespace quatrain {
namespace {

using bench::Linear;
using bench::random_planes;

constexpr size_t kColdBytes = size_t{220} << 20;  // operands rotate over more than this; L2 holds 60 MB

struct Bench {
  cudaStream_t stream;
  cublasHandle_t blas;
  ops::DeviceBuffer<uint8_t> blas_workspace{size_t{64} << 20};
  double copy = 0;

  Bench() {
    cudaStreamCreate(&stream);
    require(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
    cublasSetStream(blas, stream);
    cublasSetWorkspace(blas, blas_workspace.data(), blas_workspace.size());
    copy = bench::copy_bandwidth(stream);
  }

  double bf16(const Linear& linear, const std::vector<ops::DeviceBuffer<__nv_bfloat16>>& weights,
              int64_t tokens) {
    ops::DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(tokens * linear.columns)),
        y(static_cast<size_t>(tokens * linear.rows));
    bench::fill_normal<<<1024, 256, 0, stream>>>(x.data(), tokens * linear.columns, 1.0f, 3);
    const float one = 1, zero = 0;
    return bench::microseconds(stream, calls(tokens), [&](int i) {
      const auto& w = weights[static_cast<size_t>(i) % weights.size()];
      const auto code = cublasGemmEx(
          blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(linear.rows), static_cast<int>(tokens),
          static_cast<int>(linear.columns), &one, w.data(), CUDA_R_16BF, static_cast<int>(linear.columns),
          x.data(), CUDA_R_16BF, static_cast<int>(linear.columns), &zero, y.data(), CUDA_R_16BF,
          static_cast<int>(linear.rows), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      require(code == CUBLAS_STATUS_SUCCESS, "cublasGemmEx: {}", static_cast<int>(code));
    });
  }

  double zipper(const Linear& linear, const std::vector<ops::ZipperMatrix>& weights, int64_t tokens,
                int64_t group, int bits, bool overlap, const ops::ZipperPlan* plan = nullptr) {
    ops::DeviceActivations x(tokens, linear.columns, group);
    // 4 bits: q - z of asymmetric groups, z folded in; 8 bits: q - 128 and a zero beside it.
    bench::fill_integers<<<1024, 256, 0, stream>>>(x.codes.data(), static_cast<int64_t>(x.codes.size()),
                                                   bits == 4 ? -8 : -128, bits == 4 ? 16 : 256, 5);
    bench::fill_scales<<<64, 256, 0, stream>>>(x.scale.data(), static_cast<int64_t>(x.scale.size()), 6);
    if (bits == 8)
      bench::fill_integers<<<64, 256, 0, stream>>>(x.zero.data(), static_cast<int64_t>(x.zero.size()), -100,
                                                   200, 7);
    ops::DeviceBuffer<__nv_bfloat16> y(static_cast<size_t>(tokens * linear.rows));
    ops::ZipperWorkspace workspace(linear.rows, tokens, linear.columns);
    return bench::microseconds(stream, calls(tokens), [&](int i) {
      const auto& w = weights[static_cast<size_t>(i) % weights.size()];
      if (plan == nullptr)
        ops::zipper_gemm(w, x, workspace, y.data(), linear.rows, stream, overlap);
      else
        ops::zipper_gemm_planned(w, x, workspace, *plan, y.data(), linear.rows, stream, overlap);
    });
  }

  static int calls(int64_t tokens) { return tokens >= 2048 ? 6 : tokens >= 256 ? 16 : 48; }
};

void row(Bench& bench, const Linear& linear, const std::vector<ops::ZipperMatrix>& weights, int64_t tokens,
         int64_t group, int bits, const char* kind, double bf16) {
  const double us = bench.zipper(linear, weights, tokens, group, bits, false);
  const double chained = bench.zipper(linear, weights, tokens, group, bits, true);
  const double bytes = static_cast<double>(
      weights[0].bytes() + tokens * (linear.columns + linear.columns / group * 8 + linear.rows * 2));
  std::printf("%-8s %6ld %-22s %8.1f %8.1f %8.1f %6.2fx %6.2fx %7.0f %5.0f%%\n", linear.name, tokens, kind,
              bf16, us, chained, bf16 / us, bf16 / chained,
              2e-6 * static_cast<double>(tokens * linear.rows * linear.columns) / us,
              100 * bytes / (us * 1e-6) / bench.copy);
  std::fflush(stdout);
}

std::string name_of(const ops::ZipperPlan& plan, int64_t outputs) {
  if (plan.kernel == ops::ZipperPlan::Kernel::Decode)
    return "decode" + std::to_string(plan.workers) + "/" + std::to_string(plan.slices);
  std::string name = plan.kernel == ops::ZipperPlan::Kernel::Wide ? "wide" : "";
  name += std::to_string(plan.tile_tokens);
  if (plan.cluster > 1)
    return name + "c" + std::to_string(plan.cluster) + "/" +
           std::to_string(outputs * plan.cluster / plan.workers);
  return name + (plan.stream_k ? "s" : "");
}

void sweep(Bench& bench, const Linear& linear, const std::vector<ops::ZipperMatrix>& weights, int64_t tokens,
           double bf16, const std::string& only) {
  std::printf("%-8s %6ld bf16 %.1f:", linear.name, tokens, bf16);
  const int64_t tiles = weights[0].tiles, steps = weights[0].steps;
  const auto outputs_of = [&](const ops::ZipperPlan& plan) {
    const int64_t cluster = plan.tile_tokens >= 128 ? 2 : 1;
    return (tiles + cluster - 1) / cluster * ((tokens + plan.tile_tokens - 1) / plan.tile_tokens);
  };
  const auto time = [&](const ops::ZipperPlan& plan) {
    const std::string name = name_of(plan, outputs_of(plan));
    if (!only.empty() && only != name) return;
    std::printf("  %s=%.1f/%.1f", name.c_str(), bench.zipper(linear, weights, tokens, 128, 4, false, &plan),
                bench.zipper(linear, weights, tokens, 128, 4, true, &plan));
    std::fflush(stdout);
  };
  const ops::ZipperSlots slots = ops::ZipperWorkspace(linear.rows, tokens, linear.columns).slots;
  const ops::ZipperPlan table = ops::plan_zipper(tokens, linear.rows, tiles, steps, slots, true);
  if (only.empty() || only == "table")
    std::printf("  table %s=%.1f/%.1f", name_of(table, outputs_of(table)).c_str(),
                bench.zipper(linear, weights, tokens, 128, 4, false),
                bench.zipper(linear, weights, tokens, 128, 4, true));
  if (tokens <= 16) {
    ops::ZipperPlan plan = ops::plan_decode(tokens, linear.rows, 132);
    time(plan);
    for (const int slices : {1, 2, 4, 8}) {
      plan.slices = slices;
      plan.workers = static_cast<int>(std::min<int64_t>(132, (linear.rows + 255) / 256 * slices));
      time(plan);
    }
  }
  for (const int tile : {128, 256}) {
    if (tokens < 32) continue;
    const int64_t outputs = (tiles + 1) / 2 * ((tokens + tile - 1) / tile);
    time({ops::ZipperPlan::Kernel::Wide, tile, static_cast<int>(std::min<int64_t>(66, outputs)), 0, false});
    if (tile == 128)
      time({ops::ZipperPlan::Kernel::Wide, tile, static_cast<int>(std::min<int64_t>(66, outputs * steps / 4)),
            0, true});
  }
  for (const int tile : {16, 32, 64, 128}) {
    if (tile == 128 && tokens > 512) {
      time(ops::plan_gemm(tokens, tiles, steps, 132));
      continue;
    }
    if (tokens > 4 * tile || (tile == 128 && tokens < 64)) continue;
    ops::ZipperPlan plan{};
    plan.tile_tokens = tile;
    plan.kernel = ops::ZipperPlan::Kernel::Gemm;
    const int64_t outputs = outputs_of(plan);
    const int places = tile <= 32 ? 264 : tile == 128 ? 66 : 132;
    plan.stream_k = true;
    plan.workers = static_cast<int>(std::min<int64_t>(places, outputs * steps / 4));
    time(plan);
    plan.stream_k = false;
    plan.workers = static_cast<int>(std::min<int64_t>(places, outputs));
    time(plan);
    plan.stream_k = true;
    for (int i = 0; i < 3; ++i) {
      plan.cluster = 2 << i;
      for (int64_t each = 1; each < 2 * plan.cluster; ++each) {
        const int64_t clusters = outputs / each;
        const int most = slots.clusters[i] * (tile <= 32 ? 2 : 1);
        if (each * clusters != outputs || clusters > most || each * steps < 2 * plan.cluster ||
            !ops::cluster_fits(tile, plan.cluster, each, steps))
          continue;
        plan.workers = static_cast<int>(clusters * plan.cluster);
        time(plan);
      }
    }
  }
  std::printf("\n");
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) try {
  using namespace quatrain;
  bench::print_machine();
  Bench bench;
  std::printf("copy bandwidth (2 GiB, read + written): %.2f TB/s\n", bench.copy / 1e12);
  const ops::ZipperSlots slots = ops::ZipperWorkspace(128, 1).slots;
  std::printf("clusters of 2, 4, 8 CTAs at once: %d, %d, %d\n", slots.clusters[0], slots.clusters[1],
              slots.clusters[2]);
  std::printf("us a call: cuBLAS BF16; zipper alone; zipper in a chain of dependent launches\n");
  std::printf("%-8s %6s %-22s %8s %8s %8s %7s %7s %7s %6s\n", "linear", "tokens", "format", "bf16", "alone",
              "chained", "alone", "chained", "TOP/s", "copy");
  std::vector<int64_t> tokens;
  bool sweeping = false;
  std::string only, plan;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--sweep")
      sweeping = true;
    else if (argument == "--linear" && i + 1 < argc)
      only = argv[++i];
    else if (argument == "--plan" && i + 1 < argc)
      sweeping = true, plan = argv[++i];
    else
      tokens.push_back(std::atoll(argv[i]));
  }
  if (tokens.empty()) tokens = {1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (const Linear& linear : bench::kLlama3Linears) {
    if (!only.empty() && only != linear.name) continue;
    const auto copies = [&](double bytes) { return static_cast<int>(kColdBytes / bytes) + 1; };
    std::vector<ops::DeviceBuffer<__nv_bfloat16>> full;
    const int64_t size = linear.rows * linear.columns;
    for (int i = 0; i < copies(2.0 * static_cast<double>(size)); ++i) {
      full.emplace_back(static_cast<size_t>(size));
      bench::fill_normal<<<1024, 256, 0, bench.stream>>>(full.back().data(), size, 0.02f,
                                                         static_cast<uint32_t>(i));
    }
    const auto matrices = [&](int64_t weight_group, int percent) {
      const NibblePlanes planes = random_planes(linear, weight_group, percent);
      std::vector<ops::ZipperMatrix> out;
      for (int i = 0; i < copies(0.5 * static_cast<double>(size)); ++i) out.emplace_back(planes, 128);
      return out;
    };
    std::vector<double> base;
    for (const int64_t t : tokens) base.push_back(bench.bf16(linear, full, t));
    {
      const auto weights = matrices(0, 10);
      if (sweeping) {
        for (size_t i = 0; i < tokens.size(); ++i) sweep(bench, linear, weights, tokens[i], base[i], plan);
        continue;
      }
      for (size_t i = 0; i < tokens.size(); ++i)
        row(bench, linear, weights, tokens[i], 128, 4, "W4A4 residual 10%", base[i]);
    }
    {
      const auto weights = matrices(0, 0);
      for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] == 1 || tokens[i] == 2048)
          row(bench, linear, weights, tokens[i], 128, 4, "W4A4", base[i]);
    }
    {
      const auto weights = matrices(128, 10);
      for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] == 1 || tokens[i] == 2048)
          row(bench, linear, weights, tokens[i], 128, 8, "W4g128 A8 residual 10%", base[i]);
    }
    {
      const auto weights = matrices(0, 100);
      for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] == 1 || tokens[i] == 2048)
          row(bench, linear, weights, tokens[i], 128, 8, "W8A8", base[i]);
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
