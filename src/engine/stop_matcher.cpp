#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quatrain {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) require(!stop.empty(), "stop: a stop text is empty");
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  held_ += text;
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) match = std::min(match, held_.find(stop));
  if (match != std::string::npos) {
    matched_ = true;
    held_.resize(match);
    return std::exchange(held_, {});
  }
  size_t hold = 0;  // the longest end of held_ that begins a stop text
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > hold; --length)
      if (held_.ends_with(std::string_view(stop).substr(0, length))) hold = length;
  std::string free = held_.substr(0, held_.size() - hold);
  held_.erase(0, free.size());
  return free;
}

std::string StopMatcher::finish() {
  return std::exchange(held_, {});
}

}  // namespace quatrain
