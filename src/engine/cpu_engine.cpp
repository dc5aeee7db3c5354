#include "engine/cpu_engine.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "engine/forward_pass.h"
#include "engine/kv_pool.h"
#include "engine/model.h"

namespace quatrain {
namespace {

constexpr int64_t kLogitBytes = 32 << 20;  // of logits computed together

class CpuEngine : public Engine {
 public:
  CpuEngine(const WeightSource& source, const EngineOptions& options)
      : pool_(options.threads),
        model_(load_model(source, pool_)),
        kv_(model_.page_bytes, options.kv_tokens),
        pass_(model_, pool_),
        chunk_(options.prefill_chunk),
        context_(options.context == 0 ? model_.config.max_positions : options.context) {
    require(chunk_ > 0, "prefill chunk: {} is not positive", chunk_);
    require(context_ > 0 && context_ <= model_.config.max_positions,
            "context: {} is not in [1, {}], the positions that {} was trained for", context_,
            model_.config.max_positions, source.where());
  }

  const ModelConfig& config() const override { return model_.config; }
  int64_t context() const override { return context_; }
  int threads() const override { return pool_.threads(); }
  int64_t weight_bytes_per_token() const override { return model_.costs().weight_bytes; }
  EngineCosts costs() const override { return model_.costs(); }
  OperatorClock* clock() override { return &pass_.clock(); }
  KernelCheck* kernel_check() override { return &pass_.kernel_check(); }

  int64_t new_sequence() override { return kv_.add_sequence(); }
  void free_sequence(int64_t sequence) override { kv_.remove_sequence(sequence); }
  int64_t length(int64_t sequence) const override { return kv_.sequence(sequence).length; }
  void truncate(int64_t sequence, int64_t length) override { kv_.truncate(kv_.sequence(sequence), length); }
  int64_t pages_in_use() const override { return kv_.pages_in_use(); }
  int64_t pages_in_all() const override { return kv_.pages_in_all(); }

  void forward(std::span<const BatchItem> batch, const LogitsSink& sink) override {
    check(batch);
    std::vector<KvSequence*> sequences;
    std::vector<int64_t> before;
    for (const BatchItem& item : batch) {
      sequences.push_back(&kv_.sequence(item.sequence));
      before.push_back(sequences.back()->length);
    }
    try {
      for (size_t i = 0; i < batch.size(); ++i)
        kv_.reserve(*sequences[i], before[i] + std::ssize(batch[i].tokens));
      run_passes(batch, sequences, sink);
    } catch (...) {
      for (size_t i = 0; i < batch.size(); ++i) {
        sequences[i]->length = std::max(sequences[i]->length, before[i]);
        kv_.truncate(*sequences[i], before[i]);
      }
      throw;
    }
  }

 private:
  void check(std::span<const BatchItem> batch) const {
    std::set<int64_t> seen;
    for (const BatchItem& item : batch) {
      const int64_t length = kv_.sequence(item.sequence).length;
      require(seen.insert(item.sequence).second, "sequence {} stands twice in one batch", item.sequence);
      require(length + std::ssize(item.tokens) <= context_,
              "sequence {}: {} tokens and {} more exceed the context of {}", item.sequence, length,
              item.tokens.size(), context_);
      for (const int32_t token : item.tokens)
        require(token >= 0 && token < model_.config.vocabulary, "token {} is not in the vocabulary of {}",
                token, model_.config.vocabulary);
    }
  }

  // Fills passes of up to chunk_ tokens with the items in order, so that the logits come out in order.
  void run_passes(std::span<const BatchItem> batch, const std::vector<KvSequence*>& sequences,
                  const LogitsSink& sink) {
    size_t item = 0;
    int64_t done = 0;  // tokens of `item` that earlier passes took
    while (item < batch.size()) {
      std::vector<Slice> slices;
      std::vector<Origin> origins;
      for (int64_t room = chunk_; room > 0 && item < batch.size();) {
        const int64_t count = std::min(room, std::ssize(batch[item].tokens) - done);
        if (count > 0) {
          slices.push_back(
              {sequences[item], sequences[item]->length,
               batch[item].tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count))});
          origins.push_back({item, done});
          sequences[item]->length += count;
          room -= count;
          done += count;
        }
        if (done == std::ssize(batch[item].tokens)) ++item, done = 0;
      }
      if (!slices.empty()) emit(batch, slices, origins, pass_.run(slices), sink);
    }
  }

  struct Origin {
    size_t item;
    int64_t first;  // of the slice in the item's tokens
  };

  void emit(std::span<const BatchItem> batch, const std::vector<Slice>& slices,
            const std::vector<Origin>& origins, const float* hidden, const LogitsSink& sink) {
    struct Wanted {
      int64_t row, item, token;
    };
    std::vector<Wanted> wanted;
    int64_t row = 0;
    for (size_t s = 0; s < slices.size(); ++s) {
      const BatchItem& item = batch[origins[s].item];
      for (int64_t t = 0; t < std::ssize(slices[s].tokens); ++t, ++row) {
        const int64_t token = origins[s].first + t;
        const bool last = token + 1 == std::ssize(item.tokens);
        if (item.logits == BatchItem::Logits::All || (item.logits == BatchItem::Logits::Last && last))
          wanted.push_back({row, static_cast<int64_t>(origins[s].item), token});
      }
    }
    const int64_t width = model_.config.hidden, vocabulary = model_.config.vocabulary;
    const int64_t most = std::max<int64_t>(8, kLogitBytes / (4 * vocabulary));
    for (int64_t first = 0; first < std::ssize(wanted); first += most) {
      const int64_t count = std::min(most, std::ssize(wanted) - first);
      const std::span<const Wanted> block(wanted.data() + first, static_cast<size_t>(count));
      rows_.resize(static_cast<size_t>(count * width));
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(hidden + block[static_cast<size_t>(i)].row * width, width, rows_.data() + i * width);
      logits_.resize(static_cast<size_t>(count * vocabulary));
      pass_.logits(rows_.data(), count, logits_.data());
      for (int64_t i = 0; i < count; ++i)
        sink(block[static_cast<size_t>(i)].item, block[static_cast<size_t>(i)].token,
             {logits_.data() + i * vocabulary, static_cast<size_t>(vocabulary)});
    }
  }

  ThreadPool pool_;
  Model model_;
  KvPool kv_;
  ForwardPass pass_;
  int64_t chunk_, context_;
  AlignedBuffer<float> rows_, logits_;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(std::unique_ptr<WeightSource> source, const EngineOptions& options) {
  return std::make_unique<CpuEngine>(*source, options);
}

}  // namespace quatrain
