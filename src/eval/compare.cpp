#include "eval/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"
#include "checkpoint/artifact.h"
#include "eval/report/comparison_page.h"
#include "model/checkpoint.h"
#include "model/inspect.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/activations/jump_ratio.h"
#include "quant/calibration.h"
#include "quant/pipeline.h"
#endif

namespace quatrain {
namespace {

// Of DynamicPTQ's curves: a fifth of the published tokens, which `inspect --jump-ratio` takes.
constexpr int64_t kCurveSamples = 4, kCurveTokens = 512;

/// What one row is made of.
struct Subject {
  std::string name, recipe;  // the row's name, the recipe's description
  fs::path artifact;         // what is evaluated: the model itself, an artifact given, or one to be made
  std::string toml;          // of a recipe that is to be quantised
  std::string source;        // recipe name or file
  Json made_of;              // identity of what is evaluated
};

std::string file_name(std::string_view name) {
  std::string out;
  for (const char c : name) out += std::isalnum(static_cast<uint8_t>(c)) || c == '-' || c == '.' ? c : '_';
  return out.starts_with('.') ? "_" + out : out;
}

std::string artifact_hash(const fs::path& directory) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file()) files.insert(entry.path());
  Sha256 hash;
  for (const fs::path& file : files) {
    const MappedFile mapped(file);
    const std::string head = fmt::format("{}\n{}\n", file.filename().string(), mapped.bytes().size());
    hash.update(head.data(), head.size());
    hash.update(mapped.bytes().data(), mapped.bytes().size());
  }
  return hash.hex();
}

/// The file's document, or null where there is none or none that can be read.
Json read_kept(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return nullptr;
  try {
    return read_json(file);
  } catch (const Error& damaged) {
    log_warn("{}; it is made again", damaged.what());
    return nullptr;
  }
}

/// Whether an artifact is there and its tensors are those that were written.
bool is_whole(const fs::path& artifact) {
  if (!is_artifact(artifact)) return false;
  try {
    ArtifactReader(artifact).verify();
    return true;
  } catch (const Error& damaged) {
    log_warn("{}; it is made again", damaged.what());
    return false;
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

#ifdef QUATRAIN_HAVE_TORCH
Json quantize_subject(const CompareOptions& options, const Subject& subject, const fs::path& kept) {
  QuantizeOptions settings;
  settings.threads = options.threads;
  settings.device = options.device;
  settings.kept = kept;
  settings.max_ram = options.max_ram;
  return quantize(options.model, load_recipe(subject.source), subject.artifact, settings);
}

std::pair<std::string, std::string> recipe_text(const std::string& source) {
  const Recipe recipe = load_recipe(source);
  return {recipe.name + "\n" + recipe.description, recipe.to_toml()};
}

Json measure_jump_json(const CompareOptions& options) {
  Recipe recipe;
  recipe.calibration.samples = kCurveSamples;
  recipe.calibration.length = kCurveTokens;
  const CalibrationSamples samples = load_calibration(recipe, options.model);
  Json layers = Json::array();
  for (const LayerJump& jump : measure_jumps(options.model, samples.ids, true, options.threads))
    layers.push_back({jump.jump_ratio, jump.snr4, jump.snr8});
  return layers;
}
constexpr bool kHaveQuantizer = true;
#else
Json quantize_subject(const CompareOptions&, const Subject& subject, const fs::path&) {
  fail(
      "{}: this program was built without libtorch and compares artifacts only; build with "
      "-DQUATRAIN_TORCH=ON",
      subject.source);
}
std::pair<std::string, std::string> recipe_text(const std::string& source) {
  fail("{}: no artifact, and this program was built without libtorch, so it cannot make one of a recipe",
       source);
}
Json measure_jump_json(const CompareOptions&) {
  return nullptr;
}
constexpr bool kHaveQuantizer = false;
#endif

class Comparer {
 public:
  Comparer(const CompareOptions& options, const fs::path& output) : options_(options), output_(output) {
    for (const std::string& text : options.texts) corpora_.push_back(load_corpus(text));
    for (const std::string& name : options.tasks) tasks_.push_back(find_task(name));
    const auto checkpoint = open_checkpoint(options.model);
    fingerprint_ = checkpoint->fingerprint();
    measured_ = {{"program", options.program}, {"windows", options.windows}};
    if (options.device != "cpu") measured_["device"] = options.device;
    for (const Corpus& corpus : corpora_) measured_["texts"].push_back({corpus.name, corpus.sha256});
    for (const Protocol& protocol : options.protocols) measured_["protocols"].push_back(protocol.name());
    for (const Task& task : tasks_)
      measured_["tasks"].push_back(
          {{"task", task.name},
           {"prompts", kTaskPromptsVersion},
           {"limit", options.task_options.limit},
           {"shots", options.task_options.shots},
           {"sha256", sha256_hex(read_file(options.task_options.data / task.file))}});
  }

  Comparison run() {
    Comparison comparison;
    comparison.model = options_.model.filename().empty() ? options_.model.parent_path().filename().string()
                                                         : options_.model.filename().string();
    const std::vector<Subject> subjects = find_subjects();
    fs::create_directories(output_ / "artifacts");
    fs::create_directories(output_ / "rows");
    for (const Subject& subject : subjects) add_row(subject, comparison);
    if (options_.jump_ratio && kHaveQuantizer) add_curves(comparison);
    add_settings(comparison);
    return comparison;
  }

 private:
  std::vector<Subject> find_subjects() const {
    std::vector<Subject> subjects = {{"16-bit",
                                      "the model as it is: inputs and cache are not quantised",
                                      options_.model,
                                      "",
                                      "",
                                      {{"model", fingerprint_}}}};
    for (const std::string& name : options_.recipes) {
      if (is_artifact(name)) {
        const fs::path path =
            fs::path(name).filename().empty() ? fs::path(name).parent_path() : fs::path(name);
        const ArtifactReader reader(path);
        subjects.push_back({path.filename().string(),
                            "artifact of recipe " + reader.quantization().recipe,
                            path,
                            "",
                            "",
                            {{"artifact", artifact_hash(path)}}});
        continue;
      }
      const auto [head, toml] = recipe_text(name);
      const std::string title = head.substr(0, head.find('\n'));
      subjects.push_back({title,
                          head.substr(head.find('\n') + 1),
                          output_ / "artifacts" / file_name(title),
                          toml,
                          name,
                          {{"model", fingerprint_}, {"recipe_sha256", sha256_hex(toml)}}});
    }
    std::set<std::string> names;
    for (const Subject& subject : subjects)
      if (!names.insert(file_name(subject.name)).second)
        fail_usage("compare: two rows are called \"{}\"; rename a recipe or an artifact", subject.name);
    return subjects;
  }

  /// A recipe that this model cannot take must not lose the others: it is reported, and the run goes on.
  void add_row(const Subject& subject, Comparison& comparison) {
    try {
      comparison.rows.push_back(row_of(subject));
    } catch (const Error& error) {
      if (comparison.rows.empty()) throw;  // without the model itself there is nothing to compare with
      log_warn("{}: {}", subject.name, error.what());
      comparison.failures.emplace_back(subject.name, error.what());
    }
  }

  ComparedRow row_of(const Subject& subject) {
    const fs::path file = output_ / "rows" / (file_name(subject.name) + ".json");
    const Json key = {{"of", subject.made_of}, {"measured", measured_}};
    if (const Json kept = read_kept(file); kept.is_object() && kept.value("key", Json()) == key) {
      log_info("{}: measured already, {}", subject.name, file.string());
      return ComparedRow::from_json(kept, file.string());
    }
    ComparedRow row;
    row.name = subject.name;
    row.recipe = subject.recipe;
    row.key = key;
    if (!subject.toml.empty()) make_artifact(subject);
    describe(subject.artifact, row);
    evaluate(subject.artifact, row);
    write_file(file, row.to_json().dump(1) + "\n");
    return row;
  }

  void make_artifact(const Subject& subject) {
    const fs::path note = output_ / "artifacts" / (file_name(subject.name) + ".json");
    Json made = subject.made_of;
    made["program"] = options_.program;
    std::error_code error;
    if (read_kept(note) == made && is_whole(subject.artifact)) {
      log_info("{}: quantised already, {}", subject.name, subject.artifact.string());
      return;
    }
    fs::remove(note, error);
    fs::remove_all(subject.artifact, error);
    log_info("{}: quantising", subject.name);
    quantize_subject(options_, subject, output_ / "calibration");
    write_file(note, made.dump(1) + "\n");
  }

  static void describe(const fs::path& model, ComparedRow& row) {
    const Json facts = inspect_model(model);
    const Json bits = facts.at("effective_bits");
    row.bits_per_weight = facts.at("bits_per_weight").get<double>();
    row.weight_bits = bits.at("weights").get<double>();
    row.activation_bits = bits.at("activations").get<double>();
    row.kv_bits = bits.at("kv").get<double>();
    row.bytes = facts.at("bytes").get<uint64_t>();
    const fs::path report_file = model / "quantization_report.json";
    if (!is_artifact(model)) return;
    const Json report = read_json(report_file);
    const std::string where = report_file.string();
    row.quantize_seconds = json_get_or<double>(report, "seconds", 0, where);
    // Every linear's relative error; those of one layer count by their weights.
    std::map<int64_t, std::pair<double, double>> squares;
    for (const Json& linear : json_get_or<Json>(report, "linears", Json::array(), where)) {
      const auto name = json_get<std::string>(linear, "name", where);
      constexpr std::string_view prefix = "model.layers.";
      if (!name.starts_with(prefix)) continue;
      const auto weights =
          json_get<double>(linear, "rows", where) * json_get<double>(linear, "columns", where);
      auto& [sum, count] = squares[std::atoll(name.c_str() + prefix.size())];
      sum += weights * std::pow(json_get<double>(linear, "relative_error", where), 2);
      count += weights;
    }
    for (const auto& [layer, sum] : squares) row.weight_errors.push_back(std::sqrt(sum.first / sum.second));
    for (const Json& layer : json_get_or<Json>(report, "layers", Json::array(), where))
      if (layer.contains("stream_error"))
        row.stream_errors.push_back(json_get<double>(layer, "stream_error", where));
  }

  void evaluate(const fs::path& model, ComparedRow& row) {
    const auto start = std::chrono::steady_clock::now();
    log_info("{}: evaluating", row.name);
    const auto tokenizer = load_model_tokenizer(model);
    const auto scorer =
        make_scorer(model, {"native", {.threads = options_.threads, .device = options_.device}});
    for (const Corpus& corpus : corpora_) {
      for (const Protocol& protocol : options_.protocols) {
        PerplexityResult result = perplexity(*scorer, *tokenizer, corpus, protocol, options_.windows);
        result.model = row.name;
        const std::string text = fs::path(corpus.name).filename().string();
        row.perplexities.push_back(
            {protocol.name() + " " + text, result.value, result.error, result.to_json()});
      }
    }
    for (const Task& task : tasks_) {
      TaskResult result = run_task(*scorer->native(), *tokenizer, task, options_.task_options);
      result.model = row.name;
      const auto& [metric, estimate] = result.metrics.front();
      row.tasks.push_back({task.name + " " + metric, estimate.mean, estimate.error, result.to_json()});
    }
    row.evaluate_seconds = seconds_since(start);
  }

  void add_curves(Comparison& comparison) const {
    const fs::path file = output_ / "jump_ratio.json";
    Json kept = read_kept(file);
    const Json key = {
        {"model", fingerprint_}, {"program", options_.program}, {"tokens", kCurveSamples * kCurveTokens}};
    if (!kept.is_object() || kept.value("key", Json()) != key) {
      kept = {{"key", key}, {"layers", measure_jump_json(options_)}};
      write_file(file, kept.dump(1) + "\n");
    }
    LayerCurve ratio{"jump ratio", {}}, snr4{"4 bits", {}}, snr8{"8 bits", {}};
    for (const auto& [jump, four, eight] :
         json_get<std::vector<std::tuple<double, double, double>>>(kept, "layers", file.string())) {
      ratio.values.push_back(jump);
      snr4.values.push_back(four);
      snr8.values.push_back(eight);
    }
    comparison.jump_ratio = {ratio};
    comparison.snr = {snr4, snr8};
  }

  void add_settings(Comparison& comparison) const {
    auto& settings = comparison.settings;
    settings.emplace_back("model", options_.model.filename().string());
    settings.emplace_back("model fingerprint", fingerprint_);
    settings.emplace_back("program", "quatrain " + options_.program + ", native engine");
    for (const Corpus& corpus : corpora_)
      settings.emplace_back("text " + fs::path(corpus.name).filename().string(), "sha256 " + corpus.sha256);
    settings.emplace_back("windows",
                          options_.windows == 0 ? "all" : fmt::format("the first {}", options_.windows));
    for (const Task& task : tasks_) {
      const ComparedRow& first = comparison.rows.front();
      const auto found = std::ranges::find_if(first.tasks, [&](const ComparedFigure& figure) {
        return figure.details.value("task", "") == task.name;
      });
      if (found == first.tasks.end()) continue;
      settings.emplace_back(
          "task " + task.name,
          fmt::format("{} items, {} shots, prompts {}, {} sha256 {}", found->details.value("n", 0),
                      found->details.value("fewshot", 0), kTaskPromptsVersion, task.file,
                      found->details.value("items_sha256", "")));
    }
    for (const ComparedRow& row : comparison.rows)
      for (const auto& [what, sha] : row.key.at("of").items())
        if (row.name != "16-bit" && what != "model")
          settings.emplace_back(row.name + ", " + what, sha.get<std::string>());
  }

  const CompareOptions& options_;
  const fs::path& output_;
  std::vector<Corpus> corpora_;
  std::vector<Task> tasks_;
  std::string fingerprint_;
  Json measured_;
};

}  // namespace

Comparison compare(const CompareOptions& options, const fs::path& output) {
  return Comparer(options, output).run();
}

void write_comparison(const Comparison& comparison, const fs::path& output) {
  write_file(output / "comparison.json", comparison.to_json().dump(1) + "\n");
  write_file(output / "comparison.csv", comparison.to_csv());
  write_file(output / "report.html", comparison_page(comparison));
}

}  // namespace quatrain
