#include "line_reader.h"

#include <fmt/core.h>
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace quatrain {

// libedit. In its terminal mode Ctrl-C and Ctrl-Z are keys: a signal would have to leave libedit in the
// middle of its work.
class LineReader::Editor {
 public:
  Editor()
      : edit_(el_init("quatrain", stdin, isatty(STDOUT_FILENO) != 0 ? stdout : stderr, stderr)),
        history_(history_init()) {
    require(edit_ != nullptr && history_ != nullptr, "the terminal cannot be set up for line editing");
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 1);
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_ADDFN, "drop-line", "Drop the line", drop_line);
    el_set(edit_, EL_BIND, "^C", "drop-line", nullptr);
    el_set(edit_, EL_ADDFN, "suspend", "Suspend the program", suspend);
    el_set(edit_, EL_BIND, "^Z", "suspend", nullptr);
    el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);
  }
  ~Editor() {
    history_end(history_);
    el_end(edit_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::optional<std::string> read() {
    for (;;) {
      dropped_ = false;
      el_set(edit_, EL_PREP_TERM, 1);  // before the prompt is shown, or keys could come too early
      int count = 0;
      const char* text = el_gets(edit_, &count);
      if (text != nullptr && count > 0) {
        std::string line(text, static_cast<size_t>(count));
        HistEvent event;
        if (line.find_first_not_of(" \n") != std::string::npos)
          history(history_, &event, H_ENTER, line.c_str());
        if (line.back() == '\n') line.pop_back();
        return line;
      }
      print_note("\n");
      if (!dropped_) return std::nullopt;
      el_reset(edit_);
    }
  }

 private:
  static Editor& of(EditLine* edit) {
    void* editor = nullptr;
    el_get(edit, EL_CLIENTDATA, &editor);
    return *static_cast<Editor*>(editor);
  }
  static char* prompt(EditLine*) {
    static char text[] = "> ";
    return text;
  }
  static unsigned char drop_line(EditLine* edit, int) {
    of(edit).dropped_ = true;
    return CC_EOF;
  }
  static unsigned char suspend(EditLine*, int) {
    std::raise(SIGTSTP);  // libedit's handler gives the terminal back, and takes it when the program goes on
    return CC_REFRESH;
  }

  EditLine* edit_;
  History* history_;
  bool dropped_ = false;
};

namespace {

// libedit reads characters of the locale's encoding and drops what it cannot read. Ours are UTF-8 also where
// no locale is set, as in containers.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

LineReader::LineReader() {
  if (isatty(STDIN_FILENO) == 0) return;
  use_utf8();
  editor_ = std::make_unique<Editor>();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read() {
  if (editor_) return editor_->read();
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

}  // namespace quatrain
