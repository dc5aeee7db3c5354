#include "eval/report/comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace quatrain {
namespace {

// JSON has no NaN: an error that one item cannot have is null.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

double number_or_nan(const Json& json, std::string_view key, const std::string& where) {
  return json_get_or<double>(json, key, std::numeric_limits<double>::quiet_NaN(), where);
}

Json figures_json(const std::vector<ComparedFigure>& figures) {
  Json list = Json::array();
  for (const ComparedFigure& figure : figures)
    list.push_back({{"name", figure.name},
                    {"value", number(figure.value)},
                    {"stderr", number(figure.error)},
                    {"details", figure.details}});
  return list;
}

std::vector<ComparedFigure> figures_from(const Json& json, std::string_view key, const std::string& where) {
  std::vector<ComparedFigure> figures;
  for (const Json& entry : json_get<Json>(json, key, where))
    figures.push_back({json_get<std::string>(entry, "name", where), number_or_nan(entry, "value", where),
                       number_or_nan(entry, "stderr", where), json_get<Json>(entry, "details", where)});
  return figures;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

Json ComparedRow::to_json() const {
  return {{"name", name},
          {"recipe", recipe},
          {"key", key},
          {"bits_per_weight", bits_per_weight},
          {"effective_bits", {{"weights", weight_bits}, {"activations", activation_bits}, {"kv", kv_bits}}},
          {"bytes", bytes},
          {"quantize_seconds", quantize_seconds},
          {"evaluate_seconds", evaluate_seconds},
          {"perplexities", figures_json(perplexities)},
          {"tasks", figures_json(tasks)},
          {"weight_errors", weight_errors},
          {"stream_errors", stream_errors}};
}

ComparedRow ComparedRow::from_json(const Json& json, const std::string& where) {
  ComparedRow row;
  row.name = json_get<std::string>(json, "name", where);
  row.recipe = json_get<std::string>(json, "recipe", where);
  row.key = json_get<Json>(json, "key", where);
  row.bits_per_weight = json_get<double>(json, "bits_per_weight", where);
  const Json bits = json_get<Json>(json, "effective_bits", where);
  row.weight_bits = json_get<double>(bits, "weights", where);
  row.activation_bits = json_get<double>(bits, "activations", where);
  row.kv_bits = json_get<double>(bits, "kv", where);
  row.bytes = json_get<uint64_t>(json, "bytes", where);
  row.quantize_seconds = json_get<double>(json, "quantize_seconds", where);
  row.evaluate_seconds = json_get<double>(json, "evaluate_seconds", where);
  row.perplexities = figures_from(json, "perplexities", where);
  row.tasks = figures_from(json, "tasks", where);
  row.weight_errors = json_get<std::vector<double>>(json, "weight_errors", where);
  row.stream_errors = json_get<std::vector<double>>(json, "stream_errors", where);
  return row;
}

std::string Comparison::to_text() const {
  size_t width = 6;
  for (const ComparedRow& row : rows) width = std::max(width, row.name.size());
  std::string out =
      fmt::format("{:{}}  {:>7} {:>6} {:>5} {:>5} {:>9}", "recipe", width, "bits/w", "W", "A", "KV", "MB");
  for (const auto* figures : {&rows.front().perplexities, &rows.front().tasks})
    for (const ComparedFigure& figure : *figures) out += "  " + figure.name;
  out += "\n";
  for (const ComparedRow& row : rows) {
    out += fmt::format("{:{}}  {:>7.3f} {:>6.3f} {:>5.2f} {:>5.2f} {:>9.1f}", row.name, width,
                       row.bits_per_weight, row.weight_bits, row.activation_bits, row.kv_bits,
                       static_cast<double>(row.bytes) * 1e-6);
    for (const auto* figures : {&row.perplexities, &row.tasks})
      for (const ComparedFigure& figure : *figures)
        out += fmt::format("  {:>{}.4f}", figure.value, std::max<size_t>(figure.name.size(), 8));
    out += "\n";
  }
  for (const auto& [name, why] : failures) out += fmt::format("{:{}}  failed: {}\n", name, width, why);
  return out;
}

std::string Comparison::to_csv() const {
  std::string out = "recipe,bits_per_weight,weight_bits,activation_bits,kv_bits,bytes,quantize_seconds";
  for (const auto* figures : {&rows.front().perplexities, &rows.front().tasks})
    for (const ComparedFigure& figure : *figures)
      out += "," + csv_cell(figure.name) + "," + csv_cell(figure.name + " stderr");
  out += "\r\n";
  for (const ComparedRow& row : rows) {
    out += fmt::format("{},{},{},{},{},{},{}", csv_cell(row.name), row.bits_per_weight, row.weight_bits,
                       row.activation_bits, row.kv_bits, row.bytes, row.quantize_seconds);
    for (const auto* figures : {&row.perplexities, &row.tasks})
      for (const ComparedFigure& figure : *figures)
        out += fmt::format(",{},{}", figure.value,
                           std::isfinite(figure.error) ? fmt::format("{}", figure.error) : "");
    out += "\r\n";
  }
  return out;
}

Json Comparison::to_json() const {
  Json list = Json::array();
  for (const ComparedRow& row : rows) list.push_back(row.to_json());
  Json json = {{"model", model}, {"rows", list}};
  for (const auto& [name, value] : settings) json["settings"][name] = value;
  for (const auto& [name, why] : failures) json["failures"].push_back({{"name", name}, {"error", why}});
  for (const auto* curves : {&jump_ratio, &snr})
    for (const LayerCurve& curve : *curves) json["layers"][curve.name] = curve.values;
  return json;
}

}  // namespace quatrain
