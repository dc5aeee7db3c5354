// The memory-bound kernels against the copy bandwidth of the same run: norm and quantise, gate and quantise,
// KV4 attention.
#include <cmath>

#include "measure.h"
#include "ops/cuda/kv4_decode.h"
#include "ops/cuda/quantize_rows.h"

namespace quatrain {
namespace {

using ops::DeviceBuffer;

void quantizers(cudaStream_t stream, double copy) {
  std::printf("\nquantisers, BF16 in, groups of 128: us, and time over that of copying the bytes moved\n");
  const int buffers = 3;
  for (const int64_t width : {4096, 14336})
    for (const int64_t tokens : {1, 16, 256, 2048, 8192}) {
      std::vector<DeviceBuffer<__nv_bfloat16>> x;
      std::vector<ops::DeviceActivations> out;
      for (int i = 0; i < buffers; ++i) {
        x.emplace_back(static_cast<size_t>(tokens * width * 2));
        bench::fill_normal<<<1024, 256, 0, stream>>>(x.back().data(), tokens * width * 2, 1.0f,
                                                     static_cast<uint32_t>(i));
        out.emplace_back(tokens, width, 128);
      }
      const DeviceBuffer<float> gain(static_cast<size_t>(width));
      const auto row = [&](const char* name, int inputs,
                           const std::function<void(int, const ops::RowOptions&)>& call, int hadamard,
                           int bits) {
        ops::RowOptions options;
        options.policy = {bits, 128, false};
        options.gain = inputs == 1 ? gain.data() : nullptr;
        options.hadamard = hadamard;
        const double us =
            bench::microseconds(stream, tokens >= 2048 ? 12 : 48, [&](int i) { call(i % buffers, options); });
        const double bytes =
            static_cast<double>(tokens * width * (2 * inputs + 1) + tokens * width / 128 * 8);
        std::printf("%6ld x %5ld  %-28s A%d %8.1f us  %5.2f x copy\n", tokens, width, name, bits, us,
                    us * 1e-6 * copy / bytes);
      };
      const auto norm = [&](int i, const ops::RowOptions& options) {
        ops::rms_norm_quantize(x[static_cast<size_t>(i)].data(), width, 1e-5f, options,
                               out[static_cast<size_t>(i)], stream);
      };
      const auto gate = [&](int i, const ops::RowOptions& options) {
        ops::silu_mul_quantize(x[static_cast<size_t>(i)].data(), 2 * width, options,
                               out[static_cast<size_t>(i)], stream);
      };
      if (width == 4096) {
        row("RMSNorm, quantise", 1, norm, 0, 4);
        row("RMSNorm, Hadamard 128, quantise", 1, norm, 128, 4);
      } else {
        row("SiLU * up, quantise", 2, gate, 0, 8);
        row("SiLU * up, Hadamard 128, quantise", 2, gate, 128, 4);
      }
    }
}

void attention(cudaStream_t stream, double copy) {
  std::printf("\nKV4 decode attention, 32 query and 8 kv heads of 128\n");
  const ops::DeviceKvLayout layout{8, 128};
  for (const auto& [batch, length] : {std::pair{1, 8192}, {16, 4096}, {64, 2048}, {4, 1024}}) {
    const int pages_each = length / ops::kKvPageTokens;
    const double bytes = static_cast<double>(batch) * pages_each * static_cast<double>(layout.bytes());
    const int copies = static_cast<int>(220e6 / bytes) + 1;  // more than L2 holds
    std::vector<DeviceBuffer<uint8_t>> pages;
    std::vector<int32_t> table(static_cast<size_t>(batch * pages_each)),
        lengths(static_cast<size_t>(batch), length);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>((i * 7919) % table.size());
    const DeviceBuffer<int32_t> device_table(table.data(), table.size()),
        device_lengths(lengths.data(), lengths.size());
    for (int i = 0; i < copies; ++i) {
      pages.emplace_back(static_cast<size_t>(bytes));
      // Bytes below 0x30 keep every FP16 scale finite and small.
      bench::fill_integers<<<1024, 256, 0, stream>>>(pages.back().data(), static_cast<int64_t>(bytes), 0,
                                                     0x30, static_cast<uint32_t>(i));
    }
    std::vector<float> queries(static_cast<size_t>(batch * 4096));
    for (size_t i = 0; i < queries.size(); ++i)
      queries[i] = static_cast<float>(bench::hash(i, 7) & 1023) / 512.0f - 1.0f;
    const DeviceBuffer<float> q(queries.data(), queries.size());
    DeviceBuffer<float> out(queries.size());
    ops::KvWorkspace workspace(batch, 32, 128);
    const ops::KvRows sequences{batch, pages_each, device_table.data(), device_lengths.data()};
    const ops::KvAttention attention{32,  1.0f / std::sqrt(128.0f), 0, length, q.data(), 4096, out.data(),
                                     4096};
    const double us = bench::microseconds(stream, 24, [&](int i) {
      ops::kv4_decode_attention(layout, pages[static_cast<size_t>(i % copies)].data(), sequences, attention,
                                workspace, stream);
    });
    std::printf("B=%2d S=%5d: %6.1f us, %.2f TB/s, %3.0f%% of copy\n", batch, length, us, bytes / us * 1e-6,
                100 * bytes / (us * 1e-6) / copy);
  }
}

}  // namespace
}  // namespace quatrain

int main() try {
  using namespace quatrain;
  bench::print_machine();
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const double copy = bench::copy_bandwidth(stream);
  std::printf("copy bandwidth (2 GiB, read + written): %.2f TB/s\n", copy / 1e12);
  attention(stream, copy);
  quantizers(stream, copy);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
