#include "eval/tasks/items.h"

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "base/sha256.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

bool same(const TaskItem& a, const TaskItem& b) {
  return a.requests[0].context == b.requests[0].context &&
         a.requests[0].continuation == b.requests[0].continuation && a.subject == b.subject;
}

}  // namespace

TaskItems load_items(const Task& task, const fs::path& file) {
  const std::string text = read_file(file);
  TaskItems loaded{{}, file.filename().string(), sha256_hex(text)};
  int64_t line = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view row = std::string_view(text).substr(start, end - start);
    const std::string where = fmt::format("{}, line {}", file.string(), ++line);
    start = end + 1;
    if (row.find_first_not_of(" \r\t") == std::string_view::npos) continue;
    require(valid_utf8_prefix(row) == row.size(), "{}: invalid UTF-8", where);
    loaded.items.push_back(task.read(parse_json(row, where), where));
  }
  require(!loaded.items.empty(), "{}: no items", file.string());
  return loaded;
}

std::vector<TaskItem> limit_items(std::vector<TaskItem> items, int64_t limit) {
  if (limit <= 0) return items;
  std::map<std::string, int64_t> taken;
  std::vector<TaskItem> kept;
  for (TaskItem& item : items)
    if (taken[item.subject]++ < limit) kept.push_back(std::move(item));
  return kept;
}

void add_shots(std::vector<TaskItem>& items, const std::vector<TaskItem>& pool, int64_t shots,
               const std::string& where) {
  // from the untouched pool, so that no shot holds shots of its own
  std::map<std::string, std::vector<const TaskItem*>> by_subject;
  for (const TaskItem& item : pool) {
    auto& list = by_subject[item.subject];
    if (std::ssize(list) <= shots) list.push_back(&item);  // one more, since one may be the item itself
  }
  for (TaskItem& item : items) {
    std::string before = item.description;
    int64_t added = 0;
    for (const TaskItem* shot : by_subject[item.subject]) {
      if (added == shots) break;
      if (same(*shot, item)) continue;
      before += shot->shot();
      ++added;
    }
    require(added == shots, "{}: {} shots were asked for, but there are only {} other items{}", where, shots,
            added, item.subject.empty() ? "" : " of " + item.subject);
    for (TaskItem::Request& request : item.requests) request.context = before + request.context;
  }
}

fs::path task_data_directory(const std::string& flag) {
  std::error_code error;
  if (!flag.empty()) {
    if (!fs::is_directory(flag, error)) fail_usage("--data: {} is no directory", flag);
    return flag;
  }
  const char* shared = std::getenv("QUATRAIN_SHARED");
  const fs::path directory = fs::path(shared != nullptr ? shared : "") / "data" / "qa";
  if (shared == nullptr || !fs::is_directory(directory, error))
    fail_usage(
        "tasks: no data; give --data DIR with files such as {}, or set QUATRAIN_SHARED to a folder "
        "that holds data/qa",
        tasks().front().file);
  return directory;
}

}  // namespace quatrain
