// quatrain: quantises language models to 4 bits and runs them. Exit code 0, 1 (failed) or 2 (usage).
#include <fmt/core.h>

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

// Not fmt::print, which throws where stderr cannot be written (a full disk): nobody would catch it.
int report(const std::string& text, int code) {
  std::fputs(("error: " + printable(text) + "\n").c_str(), stderr);
  return code;
}

// The library would say that a verb is missing.
std::string unknown_verb(const CLI::App& app) {
  for (const std::string& word : app.remaining())
    if (!word.starts_with('-')) return word;
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace quatrain;
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
    if (const std::string verb = unknown_verb(app); app.get_subcommands().empty() && !verb.empty())
      return report("\"" + verb + "\" is no verb; quatrain --help lists them", 2);
    if (app.exit(error) != 0) return 2;
    return std::cout.flush() ? 0 : report("stdout: cannot write the help", 1);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error.path1().string() + ": " + error.code().message(), 1);
  } catch (const std::bad_alloc&) {
    return report("out of memory; a smaller model, context or --max-ram may fit", 1);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return report(std::string("stdout: ") + error.what(), 1);
    return report(error.what(), 1);
  }
  if (std::fflush(stdout) != 0) return report("stdout: cannot write the answer", 1);
  return 0;
}
