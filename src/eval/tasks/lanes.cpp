#include "eval/tasks/lanes.h"

#include <algorithm>

#include "engine/prefix_cache.h"

namespace quatrain {

Lanes::Lanes(Engine& engine, int64_t longest, int64_t most) : engine_(engine) {
  const int64_t room = engine.pages_in_all() / pages_of(std::max<int64_t>(longest, 1));
  lanes_.resize(static_cast<size_t>(std::clamp<int64_t>(room, 1, most)));
  for (Lane& lane : lanes_) lane.sequence = engine_.new_sequence();
}

Lanes::~Lanes() {
  for (const Lane& lane : lanes_) engine_.free_sequence(lane.sequence);
}

int64_t Lanes::keep_prefix(int64_t lane, std::span<const int32_t> ids, int64_t most) {
  const std::vector<int32_t>& held = at(lane).tokens;
  const auto wanted = ids.first(static_cast<size_t>(std::min(most, std::ssize(ids))));
  const auto end = std::ranges::mismatch(held, wanted).in2;
  truncate(lane, engine_.reusable(at(lane).sequence, end - wanted.begin()));
  return length(lane);
}

void Lanes::truncate(int64_t lane, int64_t length) {
  if (length >= this->length(lane)) return;
  engine_.truncate(at(lane).sequence, length);
  at(lane).tokens.resize(static_cast<size_t>(length));
}

void Lanes::feed(std::span<const Part> parts, const Sink& sink) {
  std::vector<BatchItem> batch;
  std::vector<Part> fed;
  for (const Part& part : parts) {
    if (part.tokens.empty()) continue;
    batch.push_back({at(part.lane).sequence, part.tokens, part.logits});
    fed.push_back(part);
  }
  if (batch.empty()) return;
  engine_.forward(batch, [&](int64_t item, int64_t token, std::span<const float> logits) {
    const int64_t lane = fed[static_cast<size_t>(item)].lane;
    sink(lane, length(lane) + token, logits);
  });
  for (const Part& part : fed)
    at(part.lane).tokens.insert(at(part.lane).tokens.end(), part.tokens.begin(), part.tokens.end());
}

}  // namespace quatrain
