#include "formats/import.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/artifact.h"
#include "model/text_files.h"

namespace quatrain {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kHead = "lm_head";

class Importer {
 public:
  Importer(const Checkpoint& model, const fs::path& output)
      : model_(model),
        config_(model.config()),
        half_(config_.dtype == "float16" ? "F16" : "BF16"),
        writer_(output) {}

  void run() {
    quantization_.recipe = "import";
    quantization_.embedding_bits = add_matrix(kEmbedding, {config_.vocabulary, config_.hidden}, false);
    Progress progress("layers", config_.layers);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      for (const LinearShape& linear : linears_of_layer(config_, layer))
        add_matrix(linear.name, {linear.out, linear.in}, linear.bias);
      for (const PlainShape& plain : plain_tensors_of_layer(config_, layer)) add_plain(plain);
      progress.update(layer + 1);
    }
    for (const PlainShape& plain : plain_tensors_of_model(config_))
      if (plain.shape.size() == 1) add_plain(plain);
    if (config_.tied_embeddings) {
      quantization_.lm_head_tied = quantization_.embedding_bits < 16;
      quantization_.lm_head_bits = quantization_.lm_head_tied ? quantization_.embedding_bits : 16;
    } else {
      quantization_.lm_head_bits = add_matrix(kHead, {config_.vocabulary, config_.hidden}, false);
    }
    require(packed_ > 0, "{}: no weight is quantised; use quatrain quantize", model_.path().string());
    for (const auto& [why, count] : floating_) log_warn("{} matrices become 16-bit: {}", count, why);
    if (wide_ > 0)
      log_warn("{} matrices of 4-bit codes with a zero point take 8 bits, so that nothing is lost", wide_);
    log_info("{} of {} matrices imported as integers", planes_, matrices_);
    write_text_files(model_.path(), config_, writer_.staging());
    writer_.finish(config_.to_json(), quantization_, "name = \"import\"\n", report());
  }

 private:
  // Returns the bits that the matrix has in the artifact.
  int add_matrix(const std::string& name, std::vector<int64_t> shape, bool bias) {
    ++matrices_;
    const std::string weight = name + ".weight", type = model_.stored_type(weight);
    const bool packed = type != "F32" && type != "F16" && type != "BF16";
    packed_ += packed ? 1 : 0;
    std::string why = type + " whose codes are not integers with one scale for neighbouring columns";
    if (auto codes = model_.read_codes(weight, 0, shape[0])) {
      const int bits = codes->bits;
      if (auto planes = planes_of_codes(*codes, why)) {
        codes.reset();
        if (bias) planes->bias = model_.read(name + ".bias");
        writer_.add_planes(name, *planes);
        if (const ActivationPolicy activation = model_.activation(name); activation.bits < 16)
          quantization_.linears[name].activation = activation;
        wide_ += bits == 8 && type.find("4-bit") != std::string::npos ? 1 : 0;
        list_.push_back({{"name", name}, {"bits", bits}, {"source", type}});
        ++planes_;
        return bits;
      }
    }
    if (packed) ++floating_[why];
    writer_.add_tensor(weight, shape, model_.read(weight), half_type(weight));
    if (bias) add_plain({name + ".bias", {shape[0]}});
    list_.push_back({{"name", name}, {"bits", 16}, {"source", type}});
    return 16;
  }

  // FP16 holds GPTQ's and GGUF's scales times small integers better than BF16; what is 16-bit stays so.
  std::string_view half_type(const std::string& weight) const {
    const std::string type = model_.stored_type(weight);
    return type == "F16" || type == "BF16" ? std::string_view(type == "F16" ? "F16" : "BF16") : half_;
  }

  void add_plain(const PlainShape& plain) {
    writer_.add_tensor(plain.name, plain.shape, model_.read(plain.name),
                       plain.shape.size() == 1 ? "F32" : half_type(plain.name));
  }

  Json report() const {
    return {{"summary", fmt::format("{} of {} matrices imported as integers", planes_, matrices_)},
            {"recipe", "import"},
            {"source",
             {{"name", model_.path().filename().string()},
              {"architecture", config_.architecture},
              {"parameters", parameter_count(config_)},
              {"fingerprint", model_.fingerprint()}}},
            {"linears", list_}};
  }

  const Checkpoint& model_;
  ModelConfig config_;
  std::string_view half_;
  ArtifactWriter writer_;
  QuantizationConfig quantization_;
  int64_t matrices_ = 0, packed_ = 0, planes_ = 0, wide_ = 0;
  std::map<std::string, int64_t> floating_;  // why: how many
  Json list_ = Json::array();
};

}  // namespace

void import_artifact(const Checkpoint& model, const fs::path& output) {
  Importer(model, output).run();
}

}  // namespace quatrain
