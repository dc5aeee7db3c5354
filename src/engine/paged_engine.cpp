#include "engine/paged_engine.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/sampler.h"

namespace quatrain {
namespace {

constexpr int64_t kLogitBytes = 32 << 20;  // of logits computed together

}  // namespace

// Where a slice's tokens stand in the batch.
struct PagedEngine::Origin {
  size_t item;
  int64_t first;  // of the slice in the item's tokens
};

PagedEngine::PagedEngine(const ModelConfig& config, std::string_view where, KvPool kv, int64_t context,
                         int64_t chunk)
    : kv_(std::move(kv)), context_(context == 0 ? config.max_positions : context), chunk_(chunk) {
  require(chunk_ > 0, "prefill chunk: {} is not positive", chunk_);
  require(context_ > 0 && context_ <= config.max_positions,
          "context: {} is not in [1, {}], the positions that {} was trained for", context_,
          config.max_positions, where);
  require(kv_.exact().sink <= context_ && kv_.exact().recent <= context_,
          "--kv-sink {}, --kv-recent {}: beyond the context of {}", kv_.exact().sink, kv_.exact().recent,
          context_);
}

void PagedEngine::forward(std::span<const BatchItem> batch, const LogitsSink& sink) {
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
    run_passes(batch, sequences, before, sink);
    finish();
  } catch (...) {
    for (size_t i = 0; i < batch.size(); ++i) {
      sequences[i]->length = std::max(sequences[i]->length, before[i]);
      kv_.truncate(*sequences[i], before[i]);
    }
    throw;
  }
}

void PagedEngine::check(std::span<const BatchItem> batch) const {
  const int64_t vocabulary = config().vocabulary;
  std::set<int64_t> seen;
  for (const BatchItem& item : batch) {
    const int64_t length = kv_.sequence(item.sequence).length;
    require(seen.insert(item.sequence).second, "sequence {} stands twice in one batch", item.sequence);
    require(length + std::ssize(item.tokens) <= context_,
            "sequence {}: {} tokens and {} more exceed the context of {}", item.sequence, length,
            item.tokens.size(), context_);
    require(item.targets.empty() ||
                (item.targets.size() == item.tokens.size() && item.logits == BatchItem::Logits::All),
            "sequence {}: {} targets for {} tokens", item.sequence, item.targets.size(), item.tokens.size());
    for (const std::span<const int32_t> ids : {item.tokens, item.targets})
      for (const int32_t id : ids)
        require(id >= 0 && id < vocabulary, "token {} is not in the vocabulary of {}", id, vocabulary);
  }
}

// Fills passes of up to chunk_ tokens with the items in order, so that the logits come out in order.
void PagedEngine::run_passes(std::span<const BatchItem> batch, const std::vector<KvSequence*>& sequences,
                             std::span<const int64_t> before, const LogitsSink& sink) {
  size_t item = 0;
  int64_t done = 0;  // tokens of `item` that earlier passes took
  while (item < batch.size()) {
    std::vector<Slice> slices;
    std::vector<Origin> origins;
    for (int64_t room = chunk_; room > 0 && item < batch.size();) {
      const int64_t count = std::min(room, std::ssize(batch[item].tokens) - done);
      if (count > 0) {
        slices.push_back({sequences[item], sequences[item]->length,
                          batch[item].tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count))});
        origins.push_back({item, done});
        kv_.hold_exact(*sequences[item], sequences[item]->length, sequences[item]->length + count);
        sequences[item]->length += count;
        room -= count;
        done += count;
      }
      if (done == std::ssize(batch[item].tokens)) ++item, done = 0;
    }
    if (slices.empty()) continue;
    run_pass(slices);
    for (const Origin& origin : origins) kv_.trim_exact(*sequences[origin.item], before[origin.item]);
    emit(batch, slices, origins, sink);
  }
}

size_t PagedEngine::rows_of_logits() const {
  return std::max<size_t>(8, kLogitBytes / (4 * static_cast<size_t>(config().vocabulary)));
}

void PagedEngine::log_probabilities(std::span<const int64_t> rows, std::span<const int32_t> targets,
                                    float* out) {
  const auto vocabulary = static_cast<size_t>(config().vocabulary);
  for (size_t first = 0; first < rows.size(); first += rows_of_logits()) {
    const size_t count = std::min(rows_of_logits(), rows.size() - first);
    logits_.resize(count * vocabulary);
    logits(rows.subspan(first, count), logits_.data());
    for (size_t i = 0; i < count; ++i)
      out[first + i] = static_cast<float>(
          log_probability({logits_.data() + i * vocabulary, vocabulary}, targets[first + i]));
  }
}

void PagedEngine::emit(std::span<const BatchItem> batch, std::span<const Slice> slices,
                       std::span<const Origin> origins, const LogitsSink& sink) {
  struct Wanted {
    int64_t item, token;
    bool scored;
  };
  std::vector<Wanted> wanted;
  std::vector<int64_t> rows;
  std::vector<int32_t> targets;  // 0 for a row whose logits are wanted
  int64_t row = 0;
  for (size_t s = 0; s < slices.size(); ++s) {
    const BatchItem& item = batch[origins[s].item];
    const bool scored = !item.targets.empty();
    for (int64_t t = 0; t < std::ssize(slices[s].tokens); ++t, ++row) {
      const int64_t token = origins[s].first + t;
      const bool last = token + 1 == std::ssize(item.tokens);
      if (item.logits == BatchItem::Logits::All || (item.logits == BatchItem::Logits::Last && last)) {
        rows.push_back(row);
        wanted.push_back({static_cast<int64_t>(origins[s].item), token, scored});
        targets.push_back(scored ? item.targets[static_cast<size_t>(token)] : 0);
      }
    }
  }
  const auto vocabulary = static_cast<size_t>(config().vocabulary);
  for (size_t first = 0, count = 0; first < rows.size(); first += count) {
    const auto other = std::find_if(wanted.begin() + static_cast<int64_t>(first), wanted.end(),
                                    [&](const Wanted& w) { return w.scored != wanted[first].scored; });
    count = static_cast<size_t>(other - wanted.begin()) - first;
    if (wanted[first].scored) {
      scores_.resize(count);
      log_probabilities(std::span(rows).subspan(first, count), std::span(targets).subspan(first, count),
                        scores_.data());
      for (size_t i = 0; i < count; ++i)
        sink(wanted[first + i].item, wanted[first + i].token, {&scores_[i], 1});
    } else {
      count = std::min(count, rows_of_logits());
      logits_.resize(count * vocabulary);
      logits(std::span(rows).subspan(first, count), logits_.data());
      for (size_t i = 0; i < count; ++i)
        sink(wanted[first + i].item, wanted[first + i].token, {logits_.data() + i * vocabulary, vocabulary});
    }
  }
}

}  // namespace quatrain
