#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "engine/cuda/cuda_forward_pass.h"
#include "engine/cuda/cuda_model.h"
#include "engine/paged_engine.h"
#include "ops/cuda/gpu.h"

namespace quatrain {
namespace {

constexpr int64_t kChunk = 2048;          // tokens of a pass, where the caller does not say
constexpr int64_t kInvariantChunk = 512;  // the same, where products keep partial sums of all their tokens
constexpr int64_t kMostSequences = 256;   // whose whole contexts the cache has room for, where memory allows
constexpr size_t kReserve = size_t{512} << 20;  // left to the driver and to graphs

// Makes the GPU of "cuda" or "cuda:N" the current one.
void select_device(const std::string& device) {
  ops::gpu_processors();
  int number = 0, count = 0;
  ops::cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (device.size() > 5) {
    const char* end = device.data() + device.size();
    const auto [next, error] = std::from_chars(device.data() + 5, end, number);
    require(error == std::errc() && next == end && number >= 0 && number < count,
            "--device {}: this machine has GPUs 0 to {}", device, count - 1);
  }
  ops::cuda_check(cudaSetDevice(number), "cudaSetDevice");
  ops::gpu_processors();
}

// Bytes that are free on the GPU, less a reserve.
size_t free_memory(size_t* total = nullptr) {
  size_t free = 0, all = 0;
  ops::cuda_check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  if (total != nullptr) *total = all;
  return free > kReserve ? free - kReserve : 0;
}

// Bytes that this engine may have: what the caller allows, or what is free.
size_t memory_limit(size_t wanted) {
  size_t total = 0;
  const size_t room = free_memory(&total);
  if (wanted > room)
    log_warn("--gpu-memory {} MiB: only {} MiB of the GPU's {} are free", wanted >> 20, room >> 20,
             total >> 20);
  return wanted == 0 ? room : std::min(wanted, room);
}

// KV pages side by side in one allocation.
class DevicePages : public PageMemory {
 public:
  DevicePages(int64_t page_bytes, int64_t pages)
      : page_bytes_(page_bytes), memory_(static_cast<size_t>(page_bytes * pages)), pages_(pages) {}

  std::byte* new_page() override {
    require(used_ < pages_,
            "the KV cache is full: all {} pages of {} tokens that GPU memory has room for are in use; end a "
            "sequence, use shorter ones, or allow more by --gpu-memory",
            pages_, ops::kKvPageTokens);
    return reinterpret_cast<std::byte*>(memory_.data() + page_bytes_ * used_++);
  }
  int64_t room() const override { return pages_ - used_; }
  uint8_t* data() { return memory_.data(); }

 private:
  int64_t page_bytes_;
  ops::DeviceBuffer<uint8_t> memory_;
  int64_t pages_, used_ = 0;
};

int64_t rows_of(const EngineOptions& options) {
  if (!options.batch_invariant) return options.prefill_chunk == -1 ? kChunk : options.prefill_chunk;
  return std::max(options.prefill_chunk == -1 ? kInvariantChunk : options.prefill_chunk,
                  ops::DenseDeviceMatrix::kInvariantTokens);
}

// Everything but the sequences, built first because the pages get what it leaves.
struct CudaParts {
  CudaParts(const WeightSource& source, const EngineOptions& options, int64_t context)
      : scratch(rows_of(options), options.threads, options.batch_invariant) {
    // What this engine takes, not what is gone from the GPU: other processes may come and go meanwhile.
    const size_t limit = memory_limit(options.gpu_memory), before = ops::device_buffer_bytes;
    model.emplace(load_cuda_model(source, scratch));
    scratch.allocate();
    pass.emplace(*model, scratch, context);
    const size_t used = ops::device_buffer_bytes - before;
    const auto page = static_cast<size_t>(model->page_bytes);
    const auto room = static_cast<int64_t>(std::min(std::max(limit, used) - used, free_memory()) / page);
    require(room > 0,
            "{}: the model and its buffers take {} MiB of GPU memory, of {} MiB allowed; allow more by "
            "--gpu-memory, use a smaller model, or --device cpu",
            source.where(), used >> 20, limit >> 20);
    const int64_t of_context = (context + ops::kKvPageTokens - 1) / ops::kKvPageTokens;
    const int64_t most = options.kv_tokens > 0
                             ? (options.kv_tokens + ops::kKvPageTokens - 1) / ops::kKvPageTokens
                             : of_context * kMostSequences;
    const int64_t count = std::min(most, room);
    require(options.kv_tokens == 0 || count == most,
            "{}: GPU memory has room for a KV cache of {} tokens beside the model, not for {}; allow more by "
            "--gpu-memory",
            source.where(), count * ops::kKvPageTokens, options.kv_tokens);
    pages = std::make_unique<DevicePages>(model->page_bytes, count);
    pass->set_pages(pages->data());
    ops::cuda_check(cudaDeviceSynchronize(), "loading the model");  // buffers are zeroed on another stream
    const std::vector<std::string> slow = model->slow_linears();
    if (!slow.empty())
      log_warn("{}: {} linears ({}, ...) have groups that no integer kernel of the GPU takes and run in FP32",
               source.where(), slow.size(), slow.front());
  }

  CudaScratch scratch;
  std::optional<CudaModel> model;
  std::optional<CudaForwardPass> pass;
  std::unique_ptr<DevicePages> pages;
};

class CudaEngine : public PagedEngine, public GreedyEngine {
 public:
  CudaEngine(const WeightSource& source, const EngineOptions& options, std::unique_ptr<CudaParts> parts)
      : PagedEngine(parts->model->config, source.where(), KvPool(std::move(parts->pages), options.kv_tokens),
                    options.context, parts->scratch.rows()),
        parts_(std::move(parts)) {
    ops::cuda_check(cudaGetDevice(&device_), "cudaGetDevice");
  }

  const ModelConfig& config() const override { return parts_->model->config; }
  int threads() const override { return 1; }
  int64_t weight_bytes_per_token() const override { return parts_->model->bytes_per_token(); }

  std::vector<int32_t> greedy(std::span<const int64_t> sequences, std::span<const int32_t> tokens,
                              int64_t steps) override {
    require(sequences.size() == tokens.size() && steps > 0,
            "greedy decoding: {} tokens for {} sequences, {} steps", tokens.size(), sequences.size(), steps);
    use_device();
    std::vector<Slice> slices;
    for (size_t i = 0; i < sequences.size(); ++i) {
      KvSequence& sequence = kv().sequence(sequences[i]);
      require(sequence.length + steps <= context(),
              "sequence {}: {} tokens and {} more exceed the context of {}", sequences[i], sequence.length,
              steps, context());
      kv().reserve(sequence, sequence.length + steps);
      slices.push_back({&sequence, sequence.length, tokens.subspan(i, 1)});
    }
    const std::vector<int32_t> found = parts_->pass->greedy(slices, steps);
    for (const int64_t id : sequences) kv().sequence(id).length += steps;
    return found;
  }

 protected:
  void run_pass(std::span<const Slice> slices) override {
    use_device();
    parts_->pass->run(slices);
  }
  void logits(std::span<const int64_t> rows, float* out) override { parts_->pass->logits(rows, out); }
  void log_probabilities(std::span<const int64_t> rows, std::span<const int32_t> targets,
                         float* out) override {
    parts_->pass->log_probabilities(rows, targets, out);
  }
  void finish() override { parts_->pass->settle(); }

 private:
  // The current GPU is a thread's own, and the scheduler's thread is not the one that loaded the model.
  void use_device() const { ops::cuda_check(cudaSetDevice(device_), "cudaSetDevice"); }

  std::unique_ptr<CudaParts> parts_;
  int device_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_cuda_engine(std::unique_ptr<WeightSource> source, const EngineOptions& options) {
  select_device(options.device);
  const int64_t longest = source->config().max_positions;
  const int64_t context = options.context == 0 ? longest : options.context;
  require(context > 0 && context <= longest,
          "context: {} is not in [1, {}], the positions that {} was trained for", context, longest,
          source->where());
  require(options.prefill_chunk == -1 || options.prefill_chunk > 0, "prefill chunk: {} is not positive",
          options.prefill_chunk);
  auto parts = std::make_unique<CudaParts>(*source, options, context);
  return std::make_unique<CudaEngine>(*source, options, std::move(parts));
}

}  // namespace quatrain
