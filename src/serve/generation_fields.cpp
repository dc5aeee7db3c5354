#include "serve/generation_fields.h"

#include <charconv>
#include <cmath>
#include <random>

#include "serve/api_error.h"
#include "serve/grammar/json_schema.h"

namespace quatrain {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr size_t kMostStops = 16, kMostStopBytes = 1024, kMostBiases = 1024;

void read_logit_bias(const RequestFields& fields, int64_t vocabulary, SamplerOptions& sampling) {
  const OrderedJson* biases = fields.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object() || biases->size() > kMostBiases)
    fail_field("logit_bias", "logit_bias is not an object of at most {} entries", kMostBiases);
  for (const auto& [key, value] : biases->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= vocabulary)
      fail_field("logit_bias", "logit_bias: \"{}\" is not a token id below {}", key, vocabulary);
    const double bias = value.is_number() ? value.get<double>() : NAN;
    if (!(bias >= -100 && bias <= 100))
      fail_field("logit_bias", "logit_bias: the bias of token {} is not in [-100, 100]", token);
    sampling.logit_bias[token] = bias == -100 ? -INFINITY : static_cast<float>(bias);  // -100 is a ban
  }
}

SamplerOptions read_sampling(const RequestFields& fields, int64_t vocabulary) {
  SamplerOptions sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, 2).value_or(1));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(1));
  // Vanishing values keep the likeliest token.
  sampling.top_p = std::max(sampling.top_p, 1e-6f);
  sampling.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, vocabulary).value_or(0));
  sampling.min_p = std::min(0.999999f, static_cast<float>(fields.number("min_p", 0, 1).value_or(0)));
  sampling.presence_penalty = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  sampling.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  sampling.repetition_penalty = static_cast<float>(fields.number("repetition_penalty", 0.01, 10).value_or(1));
  read_logit_bias(fields, vocabulary, sampling);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*seed);
  } else {
    std::random_device random;
    sampling.seed = (uint64_t{random()} << 32) | random();
  }
  return sampling;
}

std::vector<std::string> read_stop(const RequestFields& fields) {
  std::vector<std::string> stop = fields.texts("stop", kMostStops);
  for (const std::string& text : stop) {
    if (text.empty()) fail_field("stop", "stop holds an empty text");
    if (text.size() > kMostStopBytes)
      fail_field("stop", "stop holds a text of more than {} bytes", kMostStopBytes);
  }
  return stop;
}

// text, json_object, or json_schema with {"schema": ...}
std::shared_ptr<MaskedGrammar> read_response_format(const RequestFields& fields, Service& service) {
  const OrderedJson* format = fields.find("response_format");
  if (format == nullptr) return nullptr;
  if (!format->is_object()) fail_field("response_format", "response_format is not an object");
  const RequestFields inner(*format, "response_format.");
  const std::string type = inner.text("type").value_or("");
  if (type == "text") return nullptr;
  if (type == "json_object") return service.grammars().get("json_object", object_grammar);
  if (type != "json_schema")
    fail_unsupported("response_format.type",
                     "response_format.type is not \"text\", \"json_object\" or \"json_schema\"");
  const OrderedJson* wrapper = inner.find("json_schema");
  if (wrapper == nullptr || !wrapper->is_object() || !wrapper->contains("schema"))
    fail_field("response_format.json_schema", "response_format.json_schema.schema is missing");
  const OrderedJson& schema = (*wrapper)["schema"];
  try {
    return service.grammars().get("json_schema " + schema.dump(),
                                  [&] { return schema_grammar(schema, "response_format.json_schema"); });
  } catch (const Error& error) {
    fail_field("response_format", "{}", error.what());
  }
}

}  // namespace

GenerationFields read_generation_fields(const RequestFields& fields, Service& service,
                                        int64_t default_max_tokens) {
  service.check_model(fields);
  fields.refuse({"suffix", "functions", "function_call", "audio", "prediction", "web_search_options",
                 "min_tokens", "use_beam_search", "guided_json", "guided_regex", "guided_choice",
                 "guided_grammar"});
  GenerationFields result;
  result.n = fields.integer("n", 1, service.options().choices).value_or(1);
  if (fields.integer("best_of", 1, 1 << 20).value_or(result.n) != result.n)
    fail_unsupported("best_of", "best_of is supported only where it equals n");
  result.stream = fields.boolean("stream", false);
  if (const OrderedJson* options = fields.find("stream_options")) {
    if (!options->is_object()) fail_field("stream_options", "stream_options is not an object");
    result.include_usage = RequestFields(*options, "stream_options.").boolean("include_usage", false);
  }
  result.special = !fields.boolean("skip_special_tokens", true);
  result.stop = read_stop(fields);

  result.grammar = read_response_format(fields, service);

  const int64_t vocabulary = service.engine().config().vocabulary;
  GenerationRequest& request = result.request;
  request.sampling = read_sampling(fields, vocabulary);
  const auto max_tokens = fields.integer("max_tokens", 0, kMostTokens);
  request.max_tokens = fields.integer("max_completion_tokens", 0, kMostTokens)
                           .value_or(max_tokens.value_or(default_max_tokens));
  if (!fields.boolean("ignore_eos", false)) request.stop_ids = service.tokenizer().eos();
  if (const OrderedJson* ids = fields.find("stop_token_ids")) {
    for (const int32_t id : RequestFields::ids(*ids, "stop_token_ids")) request.stop_ids.push_back(id);
    if (request.stop_ids.size() > kMostBiases)
      fail_field("stop_token_ids", "stop_token_ids holds more than {} ids", kMostBiases);
  }
  request.deadline = GenerationRequest::Clock::now() + service.options().timeout;
  return result;
}

std::vector<GenerationRequest> multiply(const GenerationFields& fields,
                                        const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<GenerationRequest> requests;
  for (const std::vector<int32_t>& prompt : prompts)
    for (int64_t i = 0; i < fields.n; ++i) {
      GenerationRequest request = fields.request;
      request.prompt = prompt;
      request.sampling.seed += static_cast<uint64_t>(i);
      if (fields.grammar)
        request.constraint = std::make_shared<GrammarConstraint>(fields.grammar, request.stop_ids);
      requests.push_back(std::move(request));
    }
  return requests;
}

}  // namespace quatrain
