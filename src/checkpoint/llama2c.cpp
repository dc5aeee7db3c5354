#include "checkpoint/llama2c.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "checkpoint/element_type.h"

namespace quatrain {
namespace {

constexpr size_t kHeaderBytes = 7 * sizeof(int32_t);
constexpr int32_t kLaterMagic = 0x616B3432;  // "ak42": versions 1 and 2

Llama2cShape read_header(std::span<const std::byte> bytes, const std::string& where) {
  require(bytes.size() > kHeaderBytes, "{}: {} bytes are too few for a llama2.c model", where, bytes.size());
  int32_t fields[7];
  std::memcpy(fields, bytes.data(), sizeof(fields));
  require(fields[0] != kLaterMagic, "{}: a llama2.c export of version {}; only version 0 can be read", where,
          fields[1]);
  // Far above any model of this format; keeps every product below 2^63.
  constexpr int32_t kLimit = 1 << 24;
  const auto field = [&](int index, const char* name) {
    require(fields[index] > 0 && fields[index] < kLimit,
            "{}: header field {} is {}; the file is damaged or no llama2.c model", where, name,
            fields[index]);
    return int64_t{fields[index]};
  };
  Llama2cShape shape;
  shape.tied = fields[5] > 0;
  if (!shape.tied && fields[5] > -kLimit) fields[5] = -fields[5];
  shape.hidden = field(0, "dim");
  shape.intermediate = field(1, "hidden_dim");
  shape.layers = field(2, "n_layers");
  shape.heads = field(3, "n_heads");
  shape.kv_heads = field(4, "n_kv_heads");
  shape.vocabulary = field(5, "vocab_size");
  shape.positions = field(6, "seq_len");
  require(shape.hidden % shape.heads == 0 && shape.head_dim() % 2 == 0 && shape.heads % shape.kv_heads == 0,
          "{}: dim {}, n_heads {} and n_kv_heads {} do not divide into heads", where, shape.hidden,
          shape.heads, shape.kv_heads);
  return shape;
}

}  // namespace

Llama2cFile::Llama2cFile(const fs::path& path) : TensorTable(path), file_(path) {
  parse(file_->bytes());
}

Llama2cFile::Llama2cFile(std::span<const std::byte> bytes, const fs::path& name) : TensorTable(name) {
  parse(bytes);
}

void Llama2cFile::parse(std::span<const std::byte> bytes) {
  const std::string where = path().string();
  shape_ = read_header(bytes, where);
  const ElementType& type = *find_element_type("F32");
  size_t offset = kHeaderBytes;
  const auto take = [&](const std::string& name, std::vector<int64_t> shape) {
    const size_t size = tensor_bytes(type, shape, fmt::format("{}: tensor {}", where, name));
    require(size <= bytes.size() - offset,
            "{}: ends before tensor {}; the file is truncated or no llama2.c model of version 0", where,
            name);
    if (!name.empty()) add({name, "F32", std::move(shape)}, bytes.subspan(offset, size), where);
    offset += size;
  };
  // The file holds each kind of tensor for all layers together.
  const auto take_layers = [&](const char* suffix, const std::vector<int64_t>& shape) {
    for (int64_t layer = 0; layer < shape_.layers; ++layer)
      take(fmt::format("model.layers.{}.{}.weight", layer, suffix), shape);
  };
  const int64_t hidden = shape_.hidden, kv = shape_.kv_heads * shape_.head_dim();
  take("model.embed_tokens.weight", {shape_.vocabulary, hidden});
  take_layers("input_layernorm", {hidden});
  take_layers("self_attn.q_proj", {hidden, hidden});
  take_layers("self_attn.k_proj", {kv, hidden});
  take_layers("self_attn.v_proj", {kv, hidden});
  take_layers("self_attn.o_proj", {hidden, hidden});
  take_layers("post_attention_layernorm", {hidden});
  take_layers("mlp.gate_proj", {shape_.intermediate, hidden});
  take_layers("mlp.down_proj", {hidden, shape_.intermediate});
  take_layers("mlp.up_proj", {shape_.intermediate, hidden});
  take("model.norm.weight", {hidden});
  take("", {2, shape_.positions, shape_.head_dim() / 2});  // RoPE's cosines and sines: computed, not read
  if (!shape_.tied) take("lm_head.weight", {shape_.vocabulary, hidden});
  require(offset == bytes.size(),
          "{}: {} bytes are left after the last tensor; the header does not fit the file", where,
          bytes.size() - offset);
}

}  // namespace quatrain
