#include "ops/attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/select.h"

namespace quatrain::ops {
namespace {

// Rows (query heads of a KV head x tokens) that share one widening of a page: enough that the products
// outweigh it, few enough that their state stays in the second-level cache.
constexpr int64_t kBlockRows = 96;

// Splits of kSplitPages pages each, and which of their tokens count (AttentionBlock).
struct Run {
  int64_t first_split = 0, splits = 0;
  bool exact = false;
  int64_t window = 0, begin = 0, end = std::numeric_limits<int64_t>::max(), lag = 0;
};

struct Item {
  size_t sequence;
  int64_t first, tokens;  // of the sequence's queries
  int64_t head;
  std::array<Run, 3> runs;  // codes, first tokens, last tokens
  int64_t splits;           // of all runs
};

// Reused by the calls of one thread, so that a decode step allocates nothing.
AlignedBuffer<float>& thread_memory() {
  static thread_local AlignedBuffer<float> memory;
  return memory;
}

// Memory for the state of `rows` rows.
int64_t state_size(const KvLayout& layout, int64_t rows) {
  return rows * (layout.padded_dim + 2);
}

AttentionState state_in(float* memory, int64_t rows) {
  return {memory, memory + rows, memory + 2 * rows};
}

class Attention {
 public:
  Attention(const KvLayout& layout, const KvLayout* exact, const AttentionShape& shape,
            std::span<const AttentionSequence> sequences)
      : kernel_(select_kernel(active_isa(), attention_kernel_generic, attention_kernel_avx2,
                              attention_kernel_avx512)),
        layout_(layout),
        exact_(exact),
        shape_(shape),
        sequences_(sequences),
        group_(shape.heads / layout.kv_heads) {}

  std::vector<Item> items() const {
    const int64_t block = std::max<int64_t>(1, kBlockRows / group_);
    std::vector<Item> items;
    for (size_t s = 0; s < sequences_.size(); ++s)
      for (int64_t first = 0; first < sequences_[s].tokens; first += block)
        for (int64_t head = 0; head < layout_.kv_heads; ++head) {
          const int64_t tokens = std::min(block, sequences_[s].tokens - first);
          items.push_back({s, first, tokens, head, runs(sequences_[s].position + first, tokens), 0});
          for (const Run& run : items.back().runs) items.back().splits += run.splits;
        }
    return items;
  }

  int64_t rows(const Item& item) const { return item.tokens * group_; }

  // The queries of an item side by side, behind the kernel's scratch memory.
  void gather_queries(const Item& item, float* scratch) const {
    const AttentionSequence& sequence = sequences_[item.sequence];
    const int64_t width = group_ * layout_.head_dim;
    float* query = scratch + attention_scratch(layout_, rows(item));
    for (int64_t t = 0; t < item.tokens; ++t)
      std::copy_n(sequence.query + (item.first + t) * shape_.query_stride + item.head * width, width,
                  query + t * width);
  }

  // The state of one split, after gather_queries().
  void attend(const Item& item, int64_t split, float* scratch, const AttentionState& state) const {
    const AttentionSequence& sequence = sequences_[item.sequence];
    const int64_t position = sequence.position + item.first;
    const Run* run = item.runs.data();
    for (; split >= run->splits; ++run) split -= run->splits;
    const AttentionBlock block{.layout = run->exact ? exact_ : &layout_,
                               .head = item.head,
                               .pages = run->exact ? sequence.exact : sequence.pages,
                               .query = scratch + attention_scratch(layout_, rows(item)),
                               .rows = rows(item),
                               .group = group_,
                               .position = position,
                               .window = run->window,
                               .begin = run->begin,
                               .end = run->end,
                               .lag = run->lag,
                               .scale = shape_.scale,
                               .scratch = scratch};
    const int64_t first = (run->first_split + split) * kSplitPages;
    const int64_t end = seen_tokens(block, position + item.tokens - 1).last;
    const int64_t last = std::min(first + kSplitPages, (end - 1) / kPageTokens + 1);
    kernel_.attend(block, std::max(first, seen_tokens(block, position).first / kPageTokens), last, state);
  }

  int64_t scratch_size(const Item& item) const {
    return attention_scratch(layout_, rows(item)) + rows(item) * layout_.head_dim;
  }

  void finish(const Item& item, const AttentionState& state) const {
    const AttentionSequence& sequence = sequences_[item.sequence];
    for (int64_t row = 0; row < rows(item); ++row)
      kernel_.finish(state.values + row * layout_.padded_dim, state.sum[row], layout_.head_dim,
                     sequence.out + (item.first + row / group_) * shape_.out_stride +
                         (item.head * group_ + row % group_) * layout_.head_dim);
  }

  // All splits of an item on one thread.
  void run(const Item& item) const {
    AlignedBuffer<float>& memory = thread_memory();
    const int64_t scratch = (scratch_size(item) + 15) / 16 * 16, state = state_size(layout_, rows(item));
    memory.resize(static_cast<size_t>(scratch + 2 * state));
    const AttentionState total = state_in(memory.data() + scratch, rows(item));
    const AttentionState part = state_in(memory.data() + scratch + state, rows(item));
    gather_queries(item, memory.data());
    attend(item, 0, memory.data(), total);
    for (int64_t split = 1; split < item.splits; ++split) {
      attend(item, split, memory.data(), part);
      kernel_.merge(rows(item), layout_.padded_dim, part, total);
    }
    finish(item, total);
  }

  // The splits of all items over all threads, then the merges: the same sums as run().
  void run_split(const std::vector<Item>& items, ThreadPool& pool) const {
    struct Part {
      size_t item;
      int64_t split;
      int64_t at;
    };
    std::vector<Part> parts;
    int64_t total = 0;
    for (size_t i = 0; i < items.size(); ++i)
      for (int64_t split = 0; split < items[i].splits; ++split) {
        parts.push_back({i, split, total});
        total += state_size(layout_, rows(items[i]));
      }
    static thread_local AlignedBuffer<float> states;
    states.resize(static_cast<size_t>(total));
    float* first_state = states.data();  // the caller's buffer, for all threads
    pool.parallel_for(std::ssize(parts), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t p = begin; p < end; ++p) {
        const Part& part = parts[static_cast<size_t>(p)];
        const Item& item = items[part.item];
        AlignedBuffer<float>& scratch = thread_memory();
        scratch.resize(static_cast<size_t>(scratch_size(item)));
        gather_queries(item, scratch.data());
        attend(item, part.split, scratch.data(), state_in(first_state + part.at, rows(item)));
      }
    });
    AttentionState state;
    for (const Part& part : parts) {
      const Item& item = items[part.item];
      float* at = first_state + part.at;
      const AttentionState here = state_in(at, rows(item));
      if (part.split == 0)
        state = here;
      else
        kernel_.merge(rows(item), layout_.padded_dim, here, state);
      if (part.split == item.splits - 1) finish(item, state);
    }
  }

 private:
  // What the queries at [position, position + tokens) read where: every token in one place, the same for a
  // query whatever block it comes in.
  std::array<Run, 3> runs(int64_t position, int64_t tokens) const {
    const int64_t sink = exact_ != nullptr ? shape_.sink : 0, recent = exact_ != nullptr ? shape_.recent : 0;
    const int64_t window = shape_.window;
    std::array<Run, 3> runs = {Run{.window = window, .begin = sink, .lag = recent},
                               Run{.exact = true, .window = window, .end = sink, .lag = recent},
                               Run{.exact = true,
                                   .window = window > 0 ? std::min(recent, window) : recent,
                                   .end = recent > 0 ? std::numeric_limits<int64_t>::max() : 0}};
    constexpr int64_t kSplitTokens = kSplitPages * kPageTokens;
    for (Run& run : runs) {
      const AttentionBlock bounds{.window = run.window, .begin = run.begin, .end = run.end, .lag = run.lag};
      const int64_t first = seen_tokens(bounds, position).first;
      const int64_t last = seen_tokens(bounds, position + tokens - 1).last;
      if (first >= last) continue;
      run.first_split = first / kSplitTokens;
      run.splits = (last - 1) / kSplitTokens - run.first_split + 1;
    }
    return runs;
  }

  const AttentionKernel& kernel_;
  const KvLayout& layout_;
  const KvLayout* exact_;
  const AttentionShape& shape_;
  std::span<const AttentionSequence> sequences_;
  int64_t group_;
};

}  // namespace

void attention(const KvLayout& layout, const AttentionShape& shape,
               std::span<const AttentionSequence> sequences, ThreadPool& pool, const KvLayout* exact) {
  require(shape.heads > 0 && shape.heads % layout.kv_heads == 0,
          "{} query heads do not share {} KV heads evenly", shape.heads, layout.kv_heads);
  const Attention work(layout, exact, shape, sequences);
  const std::vector<Item> items = work.items();
  const bool several =
      std::any_of(items.begin(), items.end(), [](const Item& item) { return item.splits > 1; });
  if (several && std::ssize(items) < 4 * pool.threads()) return work.run_split(items, pool);
  // Later blocks see more keys: they go first, so that the threads end together.
  pool.parallel_for(std::ssize(items), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) work.run(items[items.size() - 1 - static_cast<size_t>(i)]);
  });
}

}  // namespace quatrain::ops
