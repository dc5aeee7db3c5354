// Lines of a chat: with editing and history where stdin is a terminal, plain lines elsewhere.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace quatrain {

class LineReader {
 public:
  LineReader();
  ~LineReader();

  bool on_terminal() const { return editor_ != nullptr; }
  /// The next line without its end; nothing at the end of input (Ctrl-D on an empty line). Ctrl-C drops the
  /// line and begins another.
  std::optional<std::string> read();

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // null where stdin is no terminal
};

}  // namespace quatrain
