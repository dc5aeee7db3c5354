// Progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quatrain {

class Progress {
 public:
  /// `what` names the work ("layers", "windows"); total 0 prints counts without a share.
  Progress(std::string what, int64_t total);
  ~Progress();
  /// Sets the count of finished items; `note` (a loss, a speed) is shown behind the ETA.
  void update(int64_t done, const std::string& note = "");

 private:
  void print(bool last, const std::string& note);
  std::string what_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool printed_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_print_;
};

}  // namespace quatrain
