// Writer of pickles, protocol 2, for files that PyTorch reads.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Functions append to a text of opcodes. An object is written as its class, its arguments and, if it has one, its
/// state.
class PickleWriter {
 public:
  PickleWriter& none() { return op("N"); }
  PickleWriter& boolean(bool value) { return op(value ? "\x88" : "\x89"); }
  PickleWriter& integer(i64 value);
  PickleWriter& number(double value);
  PickleWriter& text(std::string_view value);
  /// Appends a class or function.
  PickleWriter& global(std::string_view module, std::string_view name);
  PickleWriter& begin_tuple() { return op("("); }
  PickleWriter& end_tuple() { return op("t"); }
  PickleWriter& begin_list() { return op("]("); }
  PickleWriter& end_list() { return op("e"); }
  /// Between these calls, keys and values alternate.
  PickleWriter& begin_dict() { return op("}("); }
  PickleWriter& end_dict() { return op("u"); }
  PickleWriter& integers(const std::vector<i64>& values);
  /// Calls the function with the tuple of arguments, both appended before.
  PickleWriter& call() { return op("R"); }
  /// Appends an object of a class without arguments.
  PickleWriter& object(std::string_view module, std::string_view name);
  /// Sets the state appended last on the object before it.
  PickleWriter& set_state() { return op("b"); }
  /// Turns the tuple appended last into a reference to data outside of the pickle.
  PickleWriter& reference() { return op("Q"); }

  /// Returns the complete pickle.
  std::string finish() const { return text_ + "."; }

 private:
  PickleWriter& op(std::string_view opcodes) {
    text_ += opcodes;
    return *this;
  }
  std::string text_ = "\x80\x02";
};

}  // namespace mcpp
