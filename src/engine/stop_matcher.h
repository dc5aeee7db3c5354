// Stop texts in a stream: nothing that may be the beginning of one is let through until that is decided.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

class StopMatcher {
 public:
  /// An empty stop text is an Error.
  explicit StopMatcher(std::vector<std::string> stops);

  /// Adds text; returns what can no longer be part of a stop text. After a match, the text before the
  /// earliest match, and from then on nothing.
  std::string push(std::string_view text);
  /// What was held back at the end of the stream.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace quatrain
