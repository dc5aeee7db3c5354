// One linear from BF16 rows to BF16 results, on the linears of Llama-3-8B: quantise and one zipper product,
// beside the unfused pipeline of the MosaicQuant paper (its Table 5): quantise, dense product, sparse
// product, reduce-add. Then the same two launches of ours with and without programmatic dependent launch.
// Usage: pipeline_cuda_bench [tokens...]
#include <cmath>
#include <cstdlib>

#include "measure.h"
#include "ops/cuda/quantize_rows.h"
#include "ops/cuda/zipper_gemm.h"
#include "random_planes.h"
#include "residual_product.cuh"

namespace quatrain {
namespace {

constexpr size_t kColdBytes = size_t{220} << 20;  // operands rotate over more than this; L2 holds 60 MB

struct Bench {
  cudaStream_t stream;
  cublasHandle_t blas;
  ops::DeviceBuffer<uint8_t> blas_workspace{size_t{64} << 20};

  Bench() {
    cudaStreamCreate(&stream);
    require(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
    cublasSetStream(blas, stream);
    cublasSetWorkspace(blas, blas_workspace.data(), blas_workspace.size());
  }
};

void measure(Bench& bench, const bench::Linear& linear, const std::vector<int64_t>& all_tokens) {
  const int64_t size = linear.rows * linear.columns;
  const int copies = static_cast<int>(kColdBytes / (0.5 * static_cast<double>(size))) + 1;
  std::vector<ops::ZipperMatrix> zipped, dense;
  {
    NibblePlanes planes = bench::random_planes(linear, 0, 10);
    for (int i = 0; i < copies; ++i) zipped.emplace_back(planes, 128);
    planes.residual_index.clear();
    planes.lo.clear();
    for (int i = 0; i < copies; ++i) dense.emplace_back(planes, 128);
  }
  std::vector<ops::DeviceBuffer<__nv_bfloat16>> full;
  for (int i = 0; i < static_cast<int>(kColdBytes / (2.0 * static_cast<double>(size))) + 1; ++i) {
    full.emplace_back(static_cast<size_t>(size));
    bench::fill_normal<<<1024, 256, 0, bench.stream>>>(full.back().data(), size, 0.02f,
                                                       static_cast<uint32_t>(i));
  }
  for (const int64_t tokens : all_tokens) {
    ops::DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(tokens * linear.columns)),
        y(static_cast<size_t>(tokens * linear.rows)), sparse_y(y.size());
    bench::fill_normal<<<1024, 256, 0, bench.stream>>>(x.data(), tokens * linear.columns, 1.0f, 3);
    ops::DeviceActivations codes(tokens, linear.columns, 128);
    ops::ZipperWorkspace workspace(linear.rows, tokens, linear.columns);
    ops::RowOptions options;
    options.policy = {.bits = 4, .group = 128, .symmetric = false};
    const auto of = [](const auto& matrices, int i) -> const auto& {
      return matrices[static_cast<size_t>(i) % matrices.size()];
    };
    const auto quantize = [&](bool overlap) {
      ops::quantize_rows(x.data(), linear.columns, options, codes, bench.stream, overlap);
    };
    const auto product = [&](const std::vector<ops::ZipperMatrix>& matrices, int i, bool overlap) {
      ops::zipper_gemm(of(matrices, i), codes, workspace, y.data(), linear.rows, bench.stream, overlap);
    };
    const auto sparse = [&](int i) {
      bench::residual_product(of(zipped, i), codes, sparse_y.data(), bench.stream);
    };
    const auto add = [&] {
      bench::reduce_add<<<132 * 8, 256, 0, bench.stream>>>(
          reinterpret_cast<__nv_bfloat162*>(y.data()),
          reinterpret_cast<const __nv_bfloat162*>(sparse_y.data()), tokens * linear.rows / 2);
    };
    // Both pipelines compute the same.
    std::vector<__nv_bfloat16> fused(y.size()), unfused(y.size());
    quantize(false);
    product(zipped, 0, false);
    ops::cuda_check(cudaStreamSynchronize(bench.stream), "fused");
    y.download(fused.data(), fused.size());
    product(dense, 0, false);
    sparse(0);
    add();
    ops::cuda_check(cudaStreamSynchronize(bench.stream), "unfused");
    y.download(unfused.data(), unfused.size());
    double apart = 0, largest = 0;
    for (size_t i = 0; i < fused.size(); ++i) {
      apart = std::max(apart, std::abs(static_cast<double>(static_cast<float>(fused[i])) -
                                       static_cast<double>(static_cast<float>(unfused[i]))));
      largest = std::max(largest, std::abs(static_cast<double>(static_cast<float>(fused[i]))));
    }
    require(apart <= largest * 0.01,
            "{} at {} tokens: the pipelines' results are {} apart, the largest is {}", linear.name, tokens,
            apart, largest);

    const int calls = tokens >= 2048 ? 6 : tokens >= 256 ? 16 : 48;
    const auto time = [&](auto&& call) { return bench::microseconds(bench.stream, calls, call); };
    const float one = 1, zero = 0;
    const double bf16 = time([&](int i) {
      cublasGemmEx(bench.blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(linear.rows),
                   static_cast<int>(tokens), static_cast<int>(linear.columns), &one, of(full, i).data(),
                   CUDA_R_16BF, static_cast<int>(linear.columns), x.data(), CUDA_R_16BF,
                   static_cast<int>(linear.columns), &zero, y.data(), CUDA_R_16BF,
                   static_cast<int>(linear.rows), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    });
    quantize(false);
    const double quantizing = time([&](int) { quantize(false); }),
                 dense_us = time([&](int i) { product(dense, i, false); }), sparse_us = time(sparse),
                 add_us = time([&](int) { add(); });
    const double chain = time([&](int i) {
      quantize(false);
      product(dense, i, false);
      sparse(i);
      add();
    });
    const double apart_us = time([&](int i) {
      quantize(false);
      product(zipped, i, false);
    });
    const double overlapped = time([&](int i) {
      quantize(true);
      product(zipped, i, true);
    });
    std::printf("%-8s %6ld | %8.1f | %7.1f %8.1f %8.1f %7.1f | %8.1f | %8.1f %8.1f | %5.2fx %5.2fx\n",
                linear.name, tokens, bf16, quantizing, dense_us, sparse_us, add_us, chain, apart_us,
                overlapped, chain / overlapped, bf16 / overlapped);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) try {
  using namespace quatrain;
  bench::print_machine();
  std::printf(
      "us a call, residual 10 %%, groups of 128; quantise + product without and with dependent launch\n");
  std::printf("%-8s %6s | %8s | %7s %8s %8s %7s | %8s | %8s %8s | %6s %6s\n", "linear", "tokens", "BF16",
              "quant.", "dense", "sparse", "add", "unfused", "ours", "ours PDL", "unf.", "BF16");
  std::vector<int64_t> tokens;
  for (int i = 1; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  if (tokens.empty()) tokens = {1, 16, 128, 2048};
  Bench bench;
  for (const bench::Linear& linear : bench::kLlama3Linears) measure(bench, linear, tokens);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
