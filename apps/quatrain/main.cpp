// quatrain: quantises language models to 4 bits and runs them. Exit code 0, 1 (failed) or 2 (usage).
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include "base/log.h"
#include "verb.h"

namespace {

int report(const std::exception& error, int code) {
  fmt::print(stderr, "error: {}\n", error.what());
  return code;
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
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const UsageError& error) {
    return report(error, 2);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: out of memory; a smaller model, context or --max-ram may fit\n");
    return 1;
  } catch (const std::exception& error) {
    return report(error, 1);
  }
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "error: stdout: cannot write the answer\n");
    return 1;
  }
  return 0;
}
