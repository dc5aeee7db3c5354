// `quatrain run` in a terminal: what keys do, and that neither a strange terminal nor strange text ends it.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "program.h"
#include "support/shared.h"

namespace quatrain {
namespace {

constexpr const char* kInterrupt = "\x03";
constexpr const char* kEndOfInput = "\x04";

// The program on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, const char* kind = "xterm",
                    unsigned short columns = 80) {
    const std::string program = QUATRAIN_BINARY_DIR "/bin/quatrain";
    std::vector<const char*> argv = {program.c_str()};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    argv.push_back(nullptr);
    winsize window{};
    window.ws_row = 24;
    window.ws_col = columns;
    process_ = forkpty(&terminal_, nullptr, nullptr, &window);
    if (process_ != 0) return;
    if (kind != nullptr)
      setenv("TERM", kind, 1);
    else
      unsetenv("TERM");
    for (const char* name : {"LANG", "LC_ALL", "LC_CTYPE"}) unsetenv(name);  // as in a container
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // libedit keeps the names of functions added to it
    execv(program.c_str(), const_cast<char* const*>(argv.data()));
    _exit(127);
  }
  ~Terminal() {
    if (!collected_) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  /// Waits until `text` is shown behind what earlier calls waited for.
  testing::AssertionResult shows(const std::string& text) {
    for (;;) {
      const size_t found = shown_.find(text, seen_);
      if (found != std::string::npos) {
        seen_ = found + text.size();
        return testing::AssertionSuccess();
      }
      if (!read_more())
        return testing::AssertionFailure() << "\"" << text << "\" is not in: " << shown_.substr(seen_);
    }
  }

  /// All that has been waited for.
  std::string_view passed() const { return std::string_view(shown_).substr(0, seen_); }

  /// Whether Ctrl-D at the next prompt ends the program with code 0. A key before the prompt may be lost.
  testing::AssertionResult leaves() {
    if (testing::AssertionResult prompt = shows("> "); !prompt) return prompt;
    type(kEndOfInput);
    const int code = end();
    return code == 0 ? testing::AssertionSuccess() : testing::AssertionFailure() << "code " << code;
  }

  /// The exit code; -1 where a signal ended it, or nothing did.
  int end() {
    while (read_more()) {
    }
    int status = 0;
    collected_ = waitpid(process_, &status, WNOHANG) == process_;
    return collected_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  // False at the end of the program's output, or after a minute without any.
  bool read_more() {
    pollfd wait{terminal_, POLLIN, 0};
    if (poll(&wait, 1, 60'000) != 1) return false;
    char bytes[4096];
    const ssize_t count = read(terminal_, bytes, sizeof(bytes));
    if (count > 0) shown_.append(bytes, static_cast<size_t>(count));
    if (count <= 0) waitid(P_PID, static_cast<id_t>(process_), nullptr, WEXITED | WNOWAIT);
    return count > 0;
  }

  pid_t process_ = -1;
  int terminal_ = -1;
  bool collected_ = false;
  std::string shown_;
  size_t seen_ = 0;
};

class Chat : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP() << "no shared fixtures";
    model_ = (*shared / "data/models/stories260K/stories260K.bin").string();
  }
  std::vector<std::string> run(const char* tokens = "4") const {
    return {"run", model_, "--max-tokens", tokens};
  }
  std::string model_;
};

TEST_F(Chat, CtrlDAndQuitLeave) {
  for (const char* keys : {kEndOfInput, "/quit\r", " /exit \r"}) {
    Terminal terminal(run());
    ASSERT_TRUE(terminal.shows("> "));
    terminal.type(keys);
    EXPECT_EQ(terminal.end(), 0) << keys;
  }
}

TEST_F(Chat, CtrlCDropsTheLine) {
  Terminal terminal(run());
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("/nonsense");
  ASSERT_TRUE(terminal.shows("nonsense"));
  terminal.type(kInterrupt);
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("/help\r");
  ASSERT_TRUE(terminal.shows("/clear"));
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("/unknown\r");
  EXPECT_TRUE(terminal.shows("/unknown: no such command"));
  EXPECT_TRUE(terminal.leaves());
}

// A model of 260K parameters may be done before the key arrives; the key then does nothing, and the next
// reply is tried. Only the prompt is sure to come: with the signal the terminal drops what was not read yet.
TEST_F(Chat, CtrlCEndsAReply) {
  Terminal terminal(run("500"));
  ASSERT_TRUE(terminal.shows("> "));
  bool cancelled = false;
  for (int i = 0; i < 50 && !cancelled; ++i) {
    terminal.type("Once upon a time\r");
    ASSERT_TRUE(terminal.shows("a time\r\n"));
    terminal.type(kInterrupt);
    ASSERT_TRUE(terminal.shows("> "));
    cancelled = terminal.passed().find("cancelled]\r\n") != std::string_view::npos;
  }
  EXPECT_TRUE(cancelled);
  terminal.type("/clear\r");
  EXPECT_TRUE(terminal.leaves());
}

TEST_F(Chat, AnyTerminalWillDo) {
  for (const char* kind : {static_cast<const char*>(nullptr), "", "dumb", "no-such-terminal"})
    for (const unsigned short columns : {80, 1, 0}) {
      Terminal terminal(run(), kind, columns);
      ASSERT_TRUE(terminal.shows("> "));
      terminal.type("Once upon a time\r");
      ASSERT_TRUE(terminal.shows("tok/s")) << columns;
      EXPECT_TRUE(terminal.leaves()) << columns;
    }
}

TEST_F(Chat, AnyTextIsAnsweredOrRefused) {
  Terminal terminal(run());
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("h\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x99\x82\r");
  ASSERT_TRUE(terminal.shows("tok/s"));
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("a\xff\xfe\xc3(b\r");
  ASSERT_TRUE(terminal.shows("tok/s"));
  ASSERT_TRUE(terminal.shows("> "));
  std::string words;
  for (int i = 0; i < 700; ++i) words += "word ";
  terminal.type(words);
  terminal.type("\r");
  ASSERT_TRUE(terminal.shows("the context holds 512; shorten it"));
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("Once\r");
  ASSERT_TRUE(terminal.shows("tok/s"));
  EXPECT_TRUE(terminal.leaves());
}

TEST_F(Chat, Utf8ArrivesWithoutALocale) {
  Terminal terminal(run("1"));
  ASSERT_TRUE(terminal.shows("> "));
  terminal.type("\xc3\xa9\xc3\xa9\xc3\xa9\r");
  EXPECT_TRUE(terminal.shows("[5 + 1 tokens"));  // BOS, a space, three letters
  EXPECT_TRUE(terminal.leaves());
}

}  // namespace
}  // namespace quatrain
