// What `quatrain compare` measured: one row a recipe, as text, JSON and CSV. comparison_page.h draws it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace quatrain {

/// A figure of a row: a perplexity, or a task's headline.
struct ComparedFigure {
  std::string name;  // "token-ppl@2048 wikitext2-test", "arc_easy acc"
  double value = 0, error = 0;
  Json details;  // as the evaluation reports it
};

struct ComparedRow {
  std::string name;            // of the recipe, or what the artifact is called
  std::string recipe;          // its description
  Json key;                    // what it was made of: a row with the same key need not be made again
  double bits_per_weight = 0;  // stored, embedding and head included
  double weight_bits = 0, activation_bits = 0, kv_bits = 0;  // of linears and cache, scales included
  uint64_t bytes = 0;
  double quantize_seconds = 0, evaluate_seconds = 0;
  std::vector<ComparedFigure> perplexities, tasks;
  std::vector<double> weight_errors;  // of each layer: relative, root mean square over its matrices
  std::vector<double>
      stream_errors;  // of the quantised stream behind each layer, where the recipe follows it

  Json to_json() const;
  /// Throws with `where` and the field.
  static ComparedRow from_json(const Json& json, const std::string& where);
};

/// One curve over the layers of the 16-bit model.
struct LayerCurve {
  std::string name;
  std::vector<double> values;
};

struct Comparison {
  std::string model;                                          // as the user named it
  std::vector<ComparedRow> rows;                              // all with the same figures in the same order
  std::vector<std::pair<std::string, std::string>> failures;  // recipes without a row, and why
  std::vector<LayerCurve> jump_ratio, snr;  // DynamicPTQ's measures; empty where not measured
  std::vector<std::pair<std::string, std::string>> settings;  // what the page lists at its end

  std::string to_text() const;
  /// RFC 4180.
  std::string to_csv() const;
  Json to_json() const;
};

}  // namespace quatrain
