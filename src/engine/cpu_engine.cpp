#include "engine/cpu_engine.h"

#include <algorithm>

#include "engine/forward_pass.h"
#include "engine/model.h"
#include "engine/paged_engine.h"

namespace quatrain {
namespace {

constexpr int64_t kChunk = 256;  // tokens of a pass, where the caller does not say

// Built before the engine, whose pages follow from the model.
struct CpuParts {
  CpuParts(const WeightSource& source, int threads)
      : pool(threads), model(load_model(source, pool)), pass(model, pool) {}

  ThreadPool pool;
  Model model;
  ForwardPass pass;
};

class CpuEngine : public PagedEngine {
 public:
  CpuEngine(const WeightSource& source, const EngineOptions& options, std::unique_ptr<CpuParts> parts)
      : PagedEngine(parts->model.config, source.where(),
                    KvPool(parts->model.page_bytes, options.kv_tokens, parts->model.exact_page_bytes,
                           {options.kv_sink, options.kv_recent}),
                    options.context, options.prefill_chunk == -1 ? kChunk : options.prefill_chunk),
        parts_(std::move(parts)) {
    parts_->pass.set_exact(kv().exact());
  }

  const ModelConfig& config() const override { return parts_->model.config; }
  int threads() const override { return parts_->pool.threads(); }
  int64_t weight_bytes_per_token() const override { return parts_->model.costs().weight_bytes; }
  EngineCosts costs() const override { return parts_->model.costs(); }
  OperatorClock* clock() override { return &parts_->pass.clock(); }
  KernelCheck* kernel_check() override { return &parts_->pass.kernel_check(); }

 protected:
  void run_pass(std::span<const Slice> slices) override { hidden_ = parts_->pass.run(slices); }

  void logits(std::span<const int64_t> rows, float* out) override {
    const int64_t width = config().hidden;
    rows_.resize(rows.size() * static_cast<size_t>(width));
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(hidden_ + rows[i] * width, width, rows_.data() + static_cast<int64_t>(i) * width);
    parts_->pass.logits(rows_.data(), std::ssize(rows), out);
  }

 private:
  std::unique_ptr<CpuParts> parts_;
  const float* hidden_ = nullptr;  // of the last pass, normed
  AlignedBuffer<float> rows_;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(std::unique_ptr<WeightSource> source, const EngineOptions& options) {
  return std::make_unique<CpuEngine>(*source, options, std::make_unique<CpuParts>(*source, options.threads));
}

}  // namespace quatrain
