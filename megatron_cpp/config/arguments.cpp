#include "megatron_cpp/config/arguments.h"

#include <algorithm>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::string_view kHelpSection = "--help=", kSearch = "--search=";

bool is_option(const std::string& arg) {
  if (arg.starts_with("--")) return true;
  return arg.size() > 1 && arg[0] == '-' && arg[1] != '.' && (arg[1] < '0' || arg[1] > '9');  // -5 is a number
}

bool is_bool(const Field& field) {
  return field.type.kind == FieldType::Kind::Bool && !field.type.is_list;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return text;
}

/// Iterates over the arguments. A class because options may consume the argument after them.
class ArgumentParser {
 public:
  ArgumentParser(std::span<const std::string> args, const Usage& usage, SettingsReader& reader)
      : args_(args), usage_(usage), reader_(reader) {}

  void run() {
    bool options_ended = false;
    while (next_ < args_.size()) {
      const std::string& arg = args_[next_++];
      if (!options_ended && arg == "--") {
        options_ended = true;
      } else if (!options_ended && is_option(arg)) {
        take_option(arg);
      } else {
        take_positional(arg);
      }
    }
    if (!remaining_.empty()) {
      reader_.assign({.key = usage_.positional.back(),
                      .value = {remaining_},
                      .location = kCommandLine,
                      .spelling = upper(usage_.positional.back())});
    }
  }

 private:
  void take_option(const std::string& arg) {
    const std::size_t equals = arg.find('=');
    std::string key = arg.substr(0, equals);
    key.erase(0, key.find_first_not_of('-'));
    std::replace(key.begin(), key.end(), '-', '_');
    const Field* field = reader_.find(key);
    const bool has_next = next_ < args_.size() && !is_option(args_[next_]);
    if (field == nullptr) {
      reader_.add_problem(str(kCommandLine, ": ", arg, ": unknown option", reader_.suggest(key, "--")));
      // The next argument is probably the value of this option; reading it as a separate argument would only add a
      // confusing problem.
      if (equals == std::string::npos && has_next && positional_ >= usage_.positional.size()) ++next_;
      return;
    }
    Setting setting{.key = key, .value = {true}, .location = kCommandLine, .spelling = arg};
    if (equals != std::string::npos) {
      setting.value.data = Value::Raw{arg.substr(equals + 1)};
    } else if (is_bool(*field) ? has_next && (args_[next_] == "true" || args_[next_] == "false") : has_next) {
      setting.spelling = str(arg, " ", args_[next_]);
      setting.value.data = Value::Raw{args_[next_++]};
    } else if (!is_bool(*field)) {
      return reader_.add_problem(str(kCommandLine, ": ", arg, ": needs a value, ", field->type.describe()));
    }
    reader_.assign(setting);
  }

  void take_positional(const std::string& arg) {
    if (positional_ >= usage_.positional.size()) {
      return reader_.add_problem(str(kCommandLine, ": unexpected argument ", toml_string(arg)));
    }
    const std::string& key = usage_.positional[positional_];
    const Field* field = reader_.find(key);
    if (field->type.is_list) {
      remaining_.push_back({arg});
    } else {
      ++positional_;
      reader_.assign(
          {.key = key, .value = {Value::Raw{arg}}, .location = kCommandLine, .spelling = str(upper(key), " ", arg)});
    }
  }

  std::span<const std::string> args_;
  const Usage& usage_;
  SettingsReader& reader_;
  std::size_t next_ = 0;        // argument to read
  std::size_t positional_ = 0;  // positional key to fill
  Value::List remaining_;       // values of the last positional key, if it is a list
};

std::string spelled_key(const Usage& usage, const std::string& key) {
  const auto& names = usage.positional;
  return std::find(names.begin(), names.end(), key) != names.end() ? upper(key) : "--" + key;
}

}  // namespace

bool is_help_request(std::span<const std::string> args) {
  for (const std::string& arg : args) {
    if (arg == "--") return false;
    if (arg == "--help" || arg == "-h" || arg == "--search" || arg.starts_with(kHelpSection) ||
        arg.starts_with(kSearch))
      return true;
  }
  return false;
}

HelpFilter help_filter(Arguments args) {
  HelpFilter filter;
  for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    const std::string& arg = args[i];
    if (arg.starts_with(kHelpSection)) filter.section = arg.substr(kHelpSection.size());
    if (arg.starts_with(kSearch)) filter.search = arg.substr(kSearch.size());
    const bool is_help = arg == "--help" || arg == "-h";
    const bool has_word = i + 1 < args.size() && !is_option(args[i + 1]);
    if (arg == "--search" && has_word) filter.search = args[i + 1];
    // A path is the command's own argument.
    if (is_help && has_word && args[i + 1].find_first_of("./") == std::string::npos) filter.section = args[i + 1];
  }
  return filter;
}

bool is_options_request(std::span<const std::string> args) {
  const auto first = std::ranges::find_if(args, is_option);
  return first != args.end() && *first == "--list_options";
}

std::string options_list(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    const std::string option = "--" + field.key;
    if (is_bool(field)) {
      text += str(option, "\t", field.help, "\n");
    } else if (field.type.names.empty() || field.type.is_list) {
      text += str(option, "=\t", field.help, "\n");
    } else {
      for (const std::string& name : field.type.names) text += str(option, "=", name, "\t", field.help, "\n");
    }
  }
  return text;
}

void read_arguments(std::span<const std::string> args, const Usage& usage, SettingsReader& reader) {
  ArgumentParser(args, usage, reader).run();
  for (const std::string& key : usage.required) {
    if (reader.was_set(key) || reader.is_doubtful(key)) continue;
    reader.add_gap(str(kCommandLine, ": ", spelled_key(usage, key), ": is missing: ", reader.find(key)->help));
  }
}

std::string describe_field(const Field& field) {
  const std::string range = field.constraint.describe();
  const std::string value = field.print();
  std::string type = field.type.describe();
  for (const std::string_view article : {"an ", "a "}) {
    if (type.starts_with(article)) type.erase(0, article.size());
  }
  return str(field.help, " (", type, range.empty() ? "" : ", ", range, "; default ", value, ")");
}

std::string arguments_help(const Usage& usage, const std::vector<Field>& fields) {
  std::string text = "usage: " + usage.command;
  const auto find = [&](const std::string& key) {
    return std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.key == key; });
  };
  const auto contains = [](const std::vector<std::string>& names, const std::string& key) {
    return std::find(names.begin(), names.end(), key) != names.end();
  };
  for (const std::string& key : usage.positional) {
    const std::string name = upper(key) + (find(key)->type.is_list ? "..." : "");
    text += contains(usage.required, key) ? " " + name : " [" + name + "]";
  }
  text += " [--key=value ...]\n\n" + usage.summary + "\n";
  std::size_t width = 0;
  for (const Field& field : fields) width = std::max(width, spelled_key(usage, field.key).size() + 2);
  for (const Field& field : fields) {
    const bool is_required = contains(usage.required, field.key);
    std::string words = describe_field(field);
    if (is_required) words.replace(words.rfind("; default"), std::string::npos, "; required)");
    text += str("\n  ", pad_right(spelled_key(usage, field.key), width), words);
  }
  return text + "\n";
}

}  // namespace mcpp
