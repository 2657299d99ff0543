#include "megatron_cpp/inference/evaluation/task_file.h"

#include <algorithm>

#include "base/check.h"
#include "data/preprocess/text_source.h"
#include "megatron_cpp/inference/json_line.h"

namespace mcpp {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

std::vector<std::string> continuations_of(const nlohmann::json& object) {
  const auto it = object.find("continuations");
  check_input(it != object.end(), "has no key \"continuations\"");
  check_input(it->is_array() && !it->empty(), "\"continuations\" is not a list of at least one string");
  std::vector<std::string> continuations;
  for (const nlohmann::json& continuation : *it) {
    check_input(continuation.is_string() && !continuation.get_ref<const std::string&>().empty(),
                "\"continuations\" must contain non-empty strings only");
    continuations.push_back(continuation.get<std::string>());
  }
  return continuations;
}

std::vector<i64> answers_of(const nlohmann::json& object, i64 continuations) {
  const auto it = object.find("answer");
  const bool is_list = it != object.end() && it->is_array() && !it->empty();
  check_input(it != object.end(), "has no key \"answer\"; it says which of the ", continuations,
              " continuations is right, counted from 0");
  std::vector<i64> answers;
  for (const nlohmann::json& answer : is_list ? *it : nlohmann::json::array({*it})) {
    const i64 number = answer.is_number_integer() ? answer.get<i64>() : -1;
    check_input(number >= 0 && number < continuations, "\"answer\" is ", answer.dump(),
                "; it must be a number from 0 to ", continuations - 1, ", or a list of such");
    answers.push_back(number);
  }
  return answers;
}

TaskItem parse_item(std::string_view line) {
  const nlohmann::json object = parse_json_line(line);
  TaskItem item{.context = text_member(object, "context"), .continuations = continuations_of(object), .answers = {}};
  if (object.contains("target_delimiter")) item.target_delimiter = text_member(object, "target_delimiter");
  const auto count = static_cast<i64>(item.continuations.size());
  if (count > 1) item.answers = answers_of(object, count);
  if (count == 1 && object.contains("answer")) answers_of(object, count);  // has no effect, but must be valid
  return item;
}

/// Returns the name without folder and extensions: "arc" for tasks/arc.jsonl.gz.
std::string name_of(const Path& file) {
  Path name = file.filename();
  if (const Path compression_name = name.extension(); compression_name == ".gz" || compression_name == ".zst")
    name = name.stem();
  return name.stem().string();
}

}  // namespace

std::string Task::place(const TaskItem& item) const {
  return str(file.string(), ":", item.line);
}

Task read_task(const Path& file) {
  Task task{.name = name_of(file), .file = file, .items = {}};
  TextSource source(file);
  i64 number = 0;
  for (TextPiece piece; source.next(piece, kPieceBytes, SplitMode::Line);) {
    for (std::string_view text = piece.text; !text.empty();) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      ++number;
      if (is_blank(line)) continue;
      try {
        TaskItem item = parse_item(line);
        item.line = number;
        const bool is_choice = item.continuations.size() > 1;
        check_input(task.items.empty() || is_choice == task.is_choice(), "has ", item.continuations.size(),
                    " continuations, line ", task.items.empty() ? 0 : task.items[0].line,
                    is_choice ? " but one" : " several", "; put items of each kind in a file of their own");
        task.items.push_back(std::move(item));
      } catch (const Error& error) {
        fail(error.code(), file.string(), ":", number, ": ", error.what());
      }
    }
  }
  check_input(!task.items.empty(), file.string(), ": is empty, there is nothing to evaluate");
  return task;
}

}  // namespace mcpp
