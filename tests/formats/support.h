// A tiny Llama packed by the programs whose formats are read (make_fixtures.py), and the same model to break.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "model/checkpoint.h"

namespace quatrain {

inline fs::path fixture(const std::string& name) {
  const fs::path folder = fs::path(QUATRAIN_SOURCE_DIR) / "tests" / "formats" / "data" / name;
  return fs::exists(folder / "model.gguf") ? folder / "model.gguf" : folder;
}

inline fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(QUATRAIN_BINARY_DIR) / "formats-tests" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

/// A tensor as its file holds it.
struct RawTensor {
  std::string type;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

/// A copy of a packed fixture, changed by `change` before it is written.
inline fs::path changed_fixture(const std::string& name, const std::string& as,
                                const std::function<void(std::map<std::string, RawTensor>&, Json&)>& change) {
  const fs::path folder = fresh_folder(as);
  Json config = read_json(fixture(name) / "config.json");
  std::map<std::string, RawTensor> tensors;
  const auto source = open_safetensors(fixture(name) / "model.safetensors");
  for (const TensorInfo& tensor : source->tensors()) {
    const auto bytes = source->raw(tensor);
    tensors[tensor.name] = {tensor.type, tensor.shape, {bytes.begin(), bytes.end()}};
  }
  change(tensors, config);
  write_file(folder / "config.json", config.dump());
  SafetensorsWriter writer(folder, uint64_t{1} << 30);
  for (const auto& [tensor, raw] : tensors) writer.add(tensor, raw.type, raw.shape, raw.bytes);
  writer.finish();
  return folder;
}

/// Runs `action`, which must throw an Error whose text holds every one of `words`.
inline void expect_error(const std::function<void()>& action, const std::vector<std::string>& words) {
  try {
    action();
    FAIL() << "no error";
  } catch (const Error& error) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

}  // namespace quatrain
