// quatrain: quantises language models to 4 bits and runs them. Exit code 0, 1 (failed) or 2 (usage).
#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/log.h"
#include "verb.h"

namespace {

// Control bytes of a file's names would command the terminal.
std::string printable(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if ((byte < 0x20 && letter != '\n' && letter != '\t') || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += letter;
  }
  return out;
}

// libtorch's errors name the functions that they came through.
std::string without_frames(const std::string& text) {
  return text.substr(0, text.find("\nException raised from"));
}

// Not fmt::print, which throws where stderr cannot be written (a full disk): nobody would catch it.
int report(const std::string& text, int code) {
  std::fputs(("error: " + printable(text) + "\n").c_str(), stderr);
  return code;
}

// What stands in the place of a verb and is none: the library would say that a verb is missing.
std::string unknown_word(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining();
  const auto verb =
      std::find_if(words.begin(), words.end(), [](const auto& word) { return !word.starts_with('-'); });
  if (verb != words.end()) return "\"" + *verb + "\" is no verb";
  return words.empty() ? std::string() : "\"" + words.front() + "\" is no flag of quatrain";
}

// A file opened later must not get the number of a stdin, stdout or stderr that came closed: log lines would
// go into it. /dev/null is opened the wrong way round, so that reading and writing stay errors.
void occupy_standard_files() {
  for (const auto& [number, mode] : {std::pair{0, O_WRONLY}, {1, O_RDONLY}, {2, O_RDONLY}})
    if (::fcntl(number, F_GETFD) == -1) static_cast<void>(::open("/dev/null", mode));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quatrain;
  occupy_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an ordinary write error with a message
  init_logging();
  CLI::App app(
      "Quatrain quantises language models to 4 bits (weights, activations, KV cache) and runs them.");
  app.name("quatrain");
  app.require_subcommand(1);
  app.set_version_flag("--version", QUATRAIN_VERSION);
  add_quantize(app);
  add_eval(app);
  add_compare(app);
  add_run(app);
  add_inspect(app);
  add_convert(app);
  add_synth(app);
  add_tokenize(app);
  add_detokenize(app);
  add_template(app);
  add_logits(app);
  add_serve(app);
  add_bench(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const std::string wrong = unknown_word(app); app.get_subcommands().empty() && !wrong.empty())
      return report(wrong + "; quatrain --help lists them", 2);
    if (app.exit(error) != 0) return 2;
    return std::cout.flush() ? 0 : report("stdout: cannot write the help", 1);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error.path1().string() + ": " + error.code().message(), 1);
  } catch (const std::bad_alloc&) {
    return report(
        "out of memory; a smaller model or context may fit (quantize says beforehand with --max-ram)", 1);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return report(std::string("stdout: ") + error.what(), 1);
    return report(without_frames(error.what()), 1);
  }
  if (std::fflush(stdout) != 0) return report("stdout: cannot write the answer", 1);
  return 0;
}
