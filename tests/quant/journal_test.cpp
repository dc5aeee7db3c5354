// Entries of a journal that are damaged, or made to do damage: an error that names the file, whatever it is.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <functional>
#include <vector>

#include "base/error.h"
#include "quant/layer_record.h"
#include "quant/run_journal.h"

namespace quatrain {
namespace {

constexpr size_t kStart = 16;  // magic, length of the header

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("no Error but ") + error.what();
  }
  return "no error";
}

class JournalDamage : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::path(testing::TempDir()) /
        (std::string("quatrain_journal_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    journal_.emplace(directory_ / "out", Json::object(), false);
  }
  void TearDown() override {
    journal_.reset();
    fs::remove_all(directory_);
  }

  fs::path file(const std::string& entry) const { return directory_ / "out.journal" / (entry + ".entry"); }

  // An entry of two parts of the same size, so that their names can be swapped, and one of another.
  void write_entry() {
    journal_->write("it", {{"loss", 0.1}},
                    {{"first", std::as_bytes(std::span(first_))},
                     {"second", std::as_bytes(std::span(second_))},
                     {"third", std::as_bytes(std::span(third_))}});
    bytes_ = read_file(file("it"));
  }
  std::string find() const {
    return error_of([&] { journal_->find("it"); });
  }

  // Replaces the header; `sealed`: with the checksum that belongs to it, as one who means harm would.
  void edit(const std::string& entry, const std::function<void(Json&)>& change, bool sealed = true) const {
    const std::string bytes = read_file(file(entry));
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + kStart - sizeof length, sizeof length);
    Json header = parse_json(std::string_view(bytes).substr(kStart, length), "header");
    change(header);
    const std::string text = header.dump();
    const uint64_t now = text.size();
    std::string edited = bytes.substr(0, kStart - sizeof now);
    edited.append(reinterpret_cast<const char*>(&now), sizeof now).append(text);
    edited.append(bytes.substr(kStart + length));
    if (sealed) seal(edited);
    write_file(file(entry), edited);
  }
  static void seal(std::string& bytes) {
    const size_t end = bytes.size() - sizeof(uint32_t);
    const auto crc = static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), end));
    std::memcpy(bytes.data() + end, &crc, sizeof crc);
  }

  static void expect_damage(const std::string& message, const std::string& entry, const std::string& says) {
    for (const std::string& part : {entry + ".entry", std::string("is damaged; remove the journal"), says})
      EXPECT_NE(message.find(part), std::string::npos) << "not \"" << part << "\": " << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }

  const std::vector<float> first_{1, 2.5f, -3}, second_{4, 5, 6}, third_{7};
  fs::path directory_;
  std::optional<Journal> journal_;
  std::string bytes_;
};

// What edit() writes is an entry: the refusals below are for what was changed.
TEST_F(JournalDamage, AnUnchangedHeaderIsRead) {
  write_entry();
  edit("it", [](Json&) {});
  EXPECT_EQ(read_file(file("it")), bytes_);
  EXPECT_EQ(journal_->find("it")->values<float>("second"), second_);
  edit("it", [](Json& header) { header["parts"][0]["size"] = 12.0; });
  EXPECT_EQ(journal_->find("it")->values<float>("third"), third_);
}

// 28 bytes in all: these sizes have that sum, modulo 2^64.
TEST_F(JournalDamage, SizesWhoseSumOverflowsAreRefused) {
  write_entry();
  const uint64_t far = uint64_t{0} - 40;
  const auto lying = [](const char* name, uint64_t size) { return Json{{"name", name}, {"size", size}}; };
  edit("it", [&](Json& header) {
    Json parts = header["parts"];
    parts.insert(parts.begin(), lying("before", far));
    parts.push_back(lying("behind", 40));
    header["parts"] = parts;
  });
  expect_damage(find(), "it", fmt::format("part 0: field \"size\" is {}, the file has 28 bytes left", far));
  write_entry();
  edit("it", [&](Json& header) {
    header["parts"] = {lying("first", 12), lying("second", far), lying("third", 56)};
  });
  expect_damage(find(), "it", "part 1: field \"size\"");
  write_entry();
  edit("it", [&](Json& header) { header["parts"].push_back(lying("behind", 1)); });
  expect_damage(find(), "it", "part 3: field \"size\" is 1, the file has 0 bytes left");
  write_entry();
  edit("it", [&](Json& header) { header["parts"].erase(2); });
  expect_damage(find(), "it", "4 bytes belong to no part");
}

TEST_F(JournalDamage, AHeaderLongerThanTheFileIsRefused) {
  write_entry();
  for (const uint64_t length : {uint64_t{0} - 1, uint64_t{0} - kStart, uint64_t{bytes_.size() - kStart}}) {
    std::string longer = bytes_;
    std::memcpy(longer.data() + kStart - sizeof length, &length, sizeof length);
    seal(longer);
    write_file(file("it"), longer);
    expect_damage(find(), "it", "its header has");
  }
}

TEST_F(JournalDamage, TheChecksumCoversNamesAndSizes) {
  write_entry();
  const bool sealed = true;
  edit(
      "it", [](Json& header) { std::swap(header["parts"][0]["name"], header["parts"][1]["name"]); }, !sealed);
  expect_damage(find(), "it", "");
  write_entry();
  edit(
      "it", [](Json& header) { std::swap(header["parts"][1]["size"], header["parts"][2]["size"]); }, !sealed);
  expect_damage(find(), "it", "");
  write_entry();
  edit(
      "it", [](Json& header) { header["facts"]["loss"] = 0.2; }, !sealed);
  expect_damage(find(), "it", "");
  write_entry();
  for (size_t at = 0; at < bytes_.size(); ++at) {
    std::string flipped = bytes_;
    flipped[at] ^= 1;
    write_file(file("it"), flipped);
    expect_damage(find(), "it", "");
  }
}

TEST_F(JournalDamage, FieldsOfTheHeaderAreNamed) {
  const Json::json_pointer first("/parts/0");
  for (const bool sealed : {true, false}) {
    for (const Json& size : {Json(12.5), Json(true), Json("x"), Json(-1), Json(1e300), Json(), Json("12")}) {
      write_entry();
      edit(
          "it", [&](Json& header) { header[first]["size"] = size; }, sealed);
      expect_damage(find(), "it", "part 0: field \"size\" must be a whole number");
    }
    for (const char* field : {"size", "name"}) {
      write_entry();
      edit(
          "it", [&](Json& header) { header[first].erase(field); }, sealed);
      expect_damage(find(), "it", fmt::format("part 0: field \"{}\" is missing", field));
    }
    for (const Json& parts : {Json(7), Json(), Json("x"), Json::object()}) {
      write_entry();
      edit(
          "it", [&](Json& header) { header["parts"] = parts; }, sealed);
      expect_damage(find(), "it", "field \"parts\" has the wrong type");
    }
    for (const char* field : {"facts", "parts"}) {
      write_entry();
      edit(
          "it", [&](Json& header) { header.erase(field); }, sealed);
      expect_damage(find(), "it", fmt::format("field \"{}\" is missing", field));
    }
    write_entry();
    edit(
        "it", [](Json& header) { header["parts"] = Json::array({7}); }, sealed);
    expect_damage(find(), "it", "part 0: field \"size\" is missing");
    write_entry();
    edit(
        "it", [&](Json& header) { header[first]["name"] = 5; }, sealed);
    expect_damage(find(), "it", "part 0: field \"name\" has the wrong type");
    write_entry();
    edit(
        "it", [&](Json& header) { header["parts"][1]["name"] = "first"; }, sealed);
    expect_damage(find(), "it", "part 1: field \"name\": first is there twice");
    write_entry();
    edit(
        "it", [](Json& header) { header["facts"] = 7; }, sealed);
    expect_damage(find(), "it", "field \"facts\" has the wrong type");
  }
  std::string text = bytes_;
  text[kStart] = '[';
  seal(text);
  write_file(file("it"), text);
  expect_damage(find(), "it", "not valid JSON");
}

TEST_F(JournalDamage, FactsOfALayerAreNamed) {
  QuantizedLayer layer;
  layer.linears.push_back({"q", {2, 4, 0, 2, {1, 2, 3, 4}, {1, 2}, {}, {}, {}}, {{"error", 0.5}}});
  layer.rescaled["norm"] = torch::ones({2, 3});
  const auto read = [&] { return read_layer(*journal_->find("layer")); };
  write_layer(*journal_, "layer", layer);
  const QuantizedLayer same = read();
  EXPECT_EQ(same.linears.at(0).planes.hi, layer.linears[0].planes.hi);
  EXPECT_TRUE(torch::equal(same.rescaled.at("norm"), layer.rescaled["norm"]));
  const std::vector<std::tuple<const char*, Json, const char*>> damages = {
      {"/linears", 7, "field \"linears\""},
      {"/linears/0", 7, "linear 0: field \"name\""},
      {"/linears/0/rows", 2.5, "linear 0: field \"rows\""},
      {"/linears/0/columns", "x", "linear 0: field \"columns\""},
      {"/linears/0/name", 7, "linear 0: field \"name\""},
      {"/rescaled", 7, "field \"rescaled\""},
      {"/rescaled/norm", 7, "rescaled: norm"},
      {"/rescaled/norm", {2.5, 3}, "rescaled: norm"},
      {"/rescaled/norm", {-2, -3}, "[-2, -3]"},
      {"/rescaled/norm", {int64_t{1} << 62, 24}, "rescaled norm has 24 bytes"},
      {"/stream_error", "x", "field \"stream_error\""}};
  for (const auto& [where, value, says] : damages) {
    write_layer(*journal_, "layer", layer);
    edit("layer", [&](Json& header) { header["facts"][Json::json_pointer(where)] = value; });
    expect_damage(error_of(read), "layer", says);
  }
}

TEST_F(JournalDamage, FactsOfAStartAreNamed) {
  RunStart start;
  start.rotation = torch::eye(2, torch::kDouble);
  start.choice.blocks["q"] = {1, 2};
  start.choice.transforms.emplace_back();
  RunJournal journal(directory_ / "out", Json::object(), false, 1, false);
  const auto read = [&] { return *journal.start({}); };
  journal.write_start(start);
  EXPECT_TRUE(torch::equal(read().rotation, start.rotation));
  EXPECT_EQ(read().choice.blocks, start.choice.blocks);
  const std::vector<std::tuple<const char*, Json, const char*>> damages = {
      {"/notes", 7, "field \"notes\""},
      {"/blocks", 7, "field \"blocks\""},
      {"/blocks/q", {1, 2.5}, "blocks: q"},
      {"/blocks/q", {int64_t{1} << 32}, "blocks: q"},
      {"/inputs8", "x", "field \"inputs8\""},
      {"/transforms/0", Json::array({"none"}), "field \"transforms\""},
      {"/transforms/0", 7, "field \"transforms\""},
      {"/rotation", 2.5, "field \"rotation\""},
      {"/rotation", int64_t{1} << 31, "rotation has 32 bytes"}};
  for (const auto& [where, value, says] : damages) {
    journal.write_start(start);
    edit("start", [&](Json& header) { header["facts"][Json::json_pointer(where)] = value; });
    expect_damage(error_of([&] { read(); }), "start", says);
  }
}

}  // namespace
}  // namespace quatrain
