#include "text/byte_level_scheme.h"

#include <algorithm>
#include <vector>

#include "text/pre_tokenizer.h"

namespace quatrain {
namespace {

// Expressions of the models' own tokenizer.json files. Each cuts what the one before left.
using Patterns = std::vector<std::string>;

const std::string kGpt2(kGpt2Pattern);
const std::string kDigit = R"(\p{N})";
const std::string kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kCjk = "[一-龥ࠀ-一가-퟿]+";
const std::string kDeepseekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"
    "ἕἘ-"
    "Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-"
    "ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-"
    "𐓓𐓘-"
    "𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

enum Flag : unsigned { kPlain = 0, kNfc = 1, kIgnoreMerges = 2, kAddBos = 4, kAddEos = 8 };

struct Family {
  std::vector<std::string_view> names;
  Patterns patterns;
  unsigned flags;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {{"gpt-2", "phi-2", "gigachat", "mellum", "jais", "trillion", "granite-docling"}, {kGpt2}, kPlain},
      {{"roberta-bpe"}, {kGpt2}, kAddBos | kAddEos},
      {{"mpt", "olmo"}, {kGpt2}, kNfc},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {kDigit, kGpt2},
       kPlain},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}, kPlain},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}, kPlain},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"},
       {kLlama3},
       kIgnoreMerges | kAddBos},
      {{"dbrx", "smaug-bpe", "glm4"}, {kLlama3}, kPlain},
      {{"qwen2"}, {kQwen2}, kNfc},
      {{"qwen35"}, {kQwen35}, kNfc},
      {{"deepseek-r1-qwen", "stablelm2", "hunyuan"}, {kQwen2}, kPlain},
      {{"deepseek-llm"},
       {"[\r\n]", kDeepseekLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", kCjk, R"(\p{N}+)"},
       kPlain},
      {{"deepseek-coder"}, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, kDigit}, kPlain},
      {{"deepseek-v3"}, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3}, kPlain},
      {{"tekken"}, {kTekken}, kIgnoreMerges | kAddBos},
      {{"gpt-4o", "llama4"}, {kGpt4o}, kPlain},
      {{"chameleon"},
       {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", kDigit,
        R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
       kAddBos},
  };
  return all;
}

}  // namespace

ByteLevelScheme byte_level_scheme(std::string_view name, std::string_view where) {
  std::string known;
  for (const Family& family : families()) {
    if (std::find(family.names.begin(), family.names.end(), name) == family.names.end()) {
      for (const std::string_view other : family.names)
        known += (known.empty() ? "" : ", ") + std::string(other);
      continue;
    }
    ByteLevelScheme scheme;
    Json steps = Json::array();
    for (const std::string& pattern : family.patterns)
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", pattern}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    steps.push_back(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    scheme.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", steps}};
    if ((family.flags & kNfc) != 0) scheme.normalizer = {{"type", "NFC"}};
    scheme.ignore_merges = (family.flags & kIgnoreMerges) != 0;
    scheme.add_bos = (family.flags & kAddBos) != 0;
    scheme.add_eos = (family.flags & kAddEos) != 0;
    return scheme;
  }
  fail("{}: the pre-tokenizer \"{}\" is not known; known are {}", where, name, known);
}

}  // namespace quatrain
