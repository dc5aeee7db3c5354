// The module quatrain._quatrain. Every call that computes releases the GIL and takes it back now and then, so
// that signals (KeyboardInterrupt) end it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <variant>

#include "base/error.h"
#include "base/json.h"
#include "formats/convert.h"
#include "model.h"
#include "text/chat_template.h"
#include "text/conversation.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/pipeline.h"
#endif

namespace py = pybind11;

namespace quatrain {
namespace {

constexpr int kPatience = 50;  // milliseconds between two looks at signals

using Prompt = std::variant<std::string, std::vector<int32_t>>;

// Throws KeyboardInterrupt (or whatever a signal handler raised); called without the GIL.
void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

py::object from_json(const Json& json) {
  return py::module_::import("json").attr("loads")(json.dump());
}

// Python's view of a running generation.
class Stream {
 public:
  Stream(std::shared_ptr<LoadedModel> model, std::vector<int32_t> prompt, GenerateOptions options)
      : stream_(std::make_unique<TextStream>(std::move(model), std::move(prompt), std::move(options))) {}
  ~Stream() {
    const py::gil_scoped_release release;
    stream_.reset();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::string next() {
    if (done_) throw py::stop_iteration();
    std::string text;
    {
      const py::gil_scoped_release release;
      text = wait();
    }
    done_ = text.empty();
    if (done_) throw py::stop_iteration();
    return text;
  }

  // To the end, without the GIL.
  std::string rest() {
    std::string all;
    for (std::string text = wait(); !text.empty(); text = wait()) all += text;
    done_ = true;
    return all;
  }

  void close() {
    done_ = true;
    stream_->cancel();
  }

 private:
  std::string wait() {
    for (;;) {
      if (auto text = stream_->next(kPatience)) return *text;
      check_signals();
    }
  }

  std::unique_ptr<TextStream> stream_;
  bool done_ = false;
};

std::vector<int32_t> ids_of(const LoadedModel& model, const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return model.encode(*text);
  return std::get<std::vector<int32_t>>(prompt);
}

std::unique_ptr<Stream> start(const std::shared_ptr<LoadedModel>& model, const Prompt& prompt,
                              int64_t max_tokens, std::vector<std::string> stop, float temperature,
                              int64_t top_k, float top_p, float min_p, float repetition_penalty,
                              uint64_t seed, bool ignore_eos) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.stop = std::move(stop);
  if (!ignore_eos) {
    options.stop_ids = model->tokenizer().eos();
    for (const int64_t id : model->engine().config().eos)
      options.stop_ids.push_back(static_cast<int32_t>(id));
  }
  options.sampling.temperature = temperature;
  options.sampling.top_k = top_k;
  options.sampling.top_p = top_p;
  options.sampling.min_p = min_p;
  options.sampling.repetition_penalty = repetition_penalty;
  options.sampling.seed = seed;
  require(max_tokens >= 0, "max_tokens: {} is negative", max_tokens);
  return std::make_unique<Stream>(model, ids_of(*model, prompt), std::move(options));
}

py::array_t<float> logits(LoadedModel& model, const std::vector<int32_t>& ids) {
  const int64_t rows = std::ssize(ids), columns = model.engine().config().vocabulary;
  require(rows > 0 && rows <= model.engine().context(), "{} ids; the context holds 1 to {}", rows,
          model.engine().context());
  auto values = std::make_unique<float[]>(static_cast<size_t>(rows * columns));
  {
    const py::gil_scoped_release release;
    model.logits(ids, values.get(), check_signals);
  }
  float* data = values.release();
  const py::capsule owner(data, [](void* pointer) { delete[] static_cast<float*>(pointer); });
  return py::array_t<float>({rows, columns}, data, owner);
}

std::string apply_chat_template(const Tokenizer& tokenizer, const py::object& messages,
                                bool add_generation_prompt, const py::object& tools) {
  require(!tokenizer.chat_template().empty(), "the model brings no chat template");
  const auto parse = [](const py::object& object, const char* name) {
    return parse_ordered_json(py::module_::import("json").attr("dumps")(object).cast<std::string>(), name);
  };
  OrderedJson context =
      chat_context(tokenizer, parse(messages, "messages"), parse(tools, "tools"), add_generation_prompt);
  return ChatTemplate(tokenizer.chat_template()).render(context);
}

py::object quantize_model(const fs::path& model, const std::string& recipe, const fs::path& output,
                          const std::vector<std::string>& overrides, int threads) {
#ifdef QUATRAIN_HAVE_TORCH
  Json report;
  {
    const py::gil_scoped_release release;
    QuantizeOptions options;
    options.threads = threads;
    report = quantize(model, load_recipe(recipe, overrides), output, options);
  }
  return from_json(report);
#else
  static_cast<void>(model), static_cast<void>(recipe), static_cast<void>(output),
      static_cast<void>(overrides), static_cast<void>(threads);
  fail("quantize: this module was built without libtorch; install it with QUATRAIN_TORCH=ON pip install .");
#endif
}

void bind_tokenizer(py::module_& module) {
  py::class_<Tokenizer, std::shared_ptr<Tokenizer>>(module, "Tokenizer", "A model's tokenizer.")
      .def(
          "encode",
          [](const Tokenizer& tokenizer, const std::string& text, bool special, bool add_special) {
            const py::gil_scoped_release release;
            return add_special ? tokenizer.encode_sequence(text, special) : tokenizer.encode(text, special);
          },
          py::arg("text"), py::kw_only(), py::arg("special") = true, py::arg("add_special") = false,
          "Ids of a text. special: texts of special tokens become their ids. add_special: BOS and EOS as the "
          "tokenizer's own rules add them.")
      .def(
          "decode",
          [](const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool special) {
            return tokenizer.decode(ids, special);
          },
          py::arg("ids"), py::kw_only(), py::arg("special") = false,
          "Text of ids, special tokens left out unless asked for.")
      .def("apply_chat_template", &apply_chat_template, py::arg("messages"), py::kw_only(),
           py::arg("add_generation_prompt") = true, py::arg("tools") = py::none(),
           "The prompt that the model's chat template makes of [{\"role\": ..., \"content\": ...}, ...].")
      .def("__len__", &Tokenizer::size)
      .def_property_readonly("bos", &Tokenizer::bos, "Id of the BOS token, -1 where there is none.")
      .def_property_readonly("eos", &Tokenizer::eos, "Ids that end a reply.")
      .def_property_readonly("chat_template", &Tokenizer::chat_template,
                             "The Jinja text; empty where none is.");
}

void bind_model(py::module_& module) {
  py::class_<Stream>(module, "Stream",
                     "Pieces of text as they are generated. Leaving it ends the generation.")
      .def("__iter__", [](Stream& stream) -> Stream& { return stream; })
      .def("__next__", &Stream::next)
      .def("close", &Stream::close, "Ends the generation before its time.");

  constexpr const char* kGenerate =
      "Text that follows a prompt (a text, tokenised as the model expects it, or ids). temperature 0 is "
      "greedy; "
      "seed makes sampling repeatable; stop: texts that end the reply.";
  py::class_<LoadedModel, std::shared_ptr<LoadedModel>>(module, "Model", "A loaded model; see load().")
      .def_property_readonly("path", [](const LoadedModel& model) { return model.path().string(); })
      .def_property_readonly(
          "context", [](LoadedModel& model) { return model.engine().context(); },
          "The longest sequence, in tokens.")
      .def_property_readonly("vocabulary_size",
                             [](LoadedModel& model) { return model.engine().config().vocabulary; })
      .def_property_readonly(
          "tokenizer",
          [](const LoadedModel& model) {
            return std::const_pointer_cast<Tokenizer>(model.shared_tokenizer());
          },
          "The model's tokenizer; an Error where it brings none.")
      .def(
          "generate",
          [](const std::shared_ptr<LoadedModel>& model, const Prompt& prompt, int64_t max_tokens,
             std::vector<std::string> stop, float temperature, int64_t top_k, float top_p, float min_p,
             float repetition_penalty, uint64_t seed, bool ignore_eos) {
            const auto stream = start(model, prompt, max_tokens, std::move(stop), temperature, top_k, top_p,
                                      min_p, repetition_penalty, seed, ignore_eos);
            const py::gil_scoped_release release;
            return stream->rest();
          },
          py::arg("prompt"), py::kw_only(), py::arg("max_tokens") = 256,
          py::arg("stop") = std::vector<std::string>(), py::arg("temperature") = 0.0f, py::arg("top_k") = 0,
          py::arg("top_p") = 1.0f, py::arg("min_p") = 0.0f, py::arg("repetition_penalty") = 1.0f,
          py::arg("seed") = 0, py::arg("ignore_eos") = false, kGenerate)
      .def("stream", &start, py::arg("prompt"), py::kw_only(), py::arg("max_tokens") = 256,
           py::arg("stop") = std::vector<std::string>(), py::arg("temperature") = 0.0f, py::arg("top_k") = 0,
           py::arg("top_p") = 1.0f, py::arg("min_p") = 0.0f, py::arg("repetition_penalty") = 1.0f,
           py::arg("seed") = 0, py::arg("ignore_eos") = false,
           "As generate(), as an iterator over pieces of the text.")
      .def("logits", &logits, py::arg("ids"),
           "Logits after every one of the ids: float32 [len(ids), vocabulary_size], not copied.")
      .def(
          "perplexity",
          [](LoadedModel& model, const std::string& text, const std::string& protocol, int64_t windows) {
            PerplexityResult result;
            {
              const py::gil_scoped_release release;
              result = model.perplexity(text, protocol, windows, check_signals);
            }
            return from_json(result.to_json());
          },
          py::arg("text"), py::arg("protocol") = "token-ppl@2048", py::kw_only(), py::arg("windows") = 0,
          "Perplexity of a text file or a shipped corpus (\"wikitext2-test\") under a named protocol; a dict "
          "as "
          "`quatrain eval --json` prints it. windows: only the first so many.");
}

}  // namespace

PYBIND11_MODULE(_quatrain, module) {
  module.doc() = "4-bit language models: load, generate, logits, perplexity, quantise, convert.";
  const auto error = py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception<UsageError>(module, "UsageError", error.ptr());
  bind_tokenizer(module);
  bind_model(module);
  module.def(
      "load",
      [](const fs::path& path, int threads, int64_t context) {
        const py::gil_scoped_release release;
        return std::make_shared<LoadedModel>(path, threads, context);
      },
      py::arg("path"), py::kw_only(), py::arg("threads") = 0, py::arg("context") = 0,
      "Loads a model directory (16-bit, packed or artifact), a GGUF or a llama2.c file. threads 0: all "
      "cores; "
      "context 0: the model's own.");
  module.def("quantize", &quantize_model, py::arg("model"), py::arg("recipe"), py::arg("output"),
             py::kw_only(), py::arg("overrides") = std::vector<std::string>(), py::arg("threads") = 0,
             "Quantises a model by a recipe's name or file into the artifact `output`; the report as a dict. "
             "Needs a build with libtorch.");
  module.def(
      "convert",
      [](const fs::path& model, const fs::path& output, const std::string& to, const std::string& dtype,
         bool fold) {
        const py::gil_scoped_release release;
        convert_format(model, output, {.to = to, .dtype = dtype, .fold = fold});
      },
      py::arg("model"), py::arg("output"), py::kw_only(), py::arg("to"), py::arg("dtype") = "",
      py::arg("fold") = false, "As `quatrain convert`.");
#ifdef QUATRAIN_HAVE_TORCH
  module.attr("has_quantizer") = true;
#else
  module.attr("has_quantizer") = false;
#endif
}

}  // namespace quatrain
