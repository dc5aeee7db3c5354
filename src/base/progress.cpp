#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace quatrain {

using Clock = std::chrono::steady_clock;

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_print_(start_) {}

Progress::~Progress() {
  if (terminal_ && printed_) std::fputc('\n', stderr);
}

void Progress::update(int64_t done, const std::string& note) {
  done_ = done;
  const auto now = Clock::now();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000);
  const bool last = total_ > 0 && done >= total_;
  if (!last && now - last_print_ < pause) return;
  last_print_ = now;
  print(last, note);
}

void Progress::print(bool last, const std::string& note) {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  std::string line = fmt::format("{} {}", what_, done_);
  if (total_ > 0) {
    line += fmt::format("/{}", total_);
    if (done_ > 0 && !last)
      line += fmt::format(", {:.0f} s left", elapsed / double(done_) * double(total_ - done_));
  }
  if (last) line += fmt::format(", {:.1f} s", elapsed);
  if (!note.empty()) line += ", " + note;
  if (terminal_) {
    constexpr int width = 30;
    const int filled = total_ > 0 ? static_cast<int>(width * std::min(done_, total_) / total_) : 0;
    print_note("\r[{}{}] {}\033[K", std::string(filled, '#'), std::string(width - filled, '.'), line);
  } else {
    print_note("{}\n", line);
  }
  std::fflush(stderr);
  printed_ = true;
}

}  // namespace quatrain
