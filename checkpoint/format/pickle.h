// Restricted reader of Python pickles, protocols 2 to 5. It runs no code: a pickle becomes a tree of values in which
// objects are records of their class, arguments and state. Classes and functions that are not in a list of known ones
// are rejected.
#pragma once
#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// Kind of a value. Integers of more than 8 bytes have the kind Bytes. Persistent is a reference to data outside of the
/// pickle, such as the storage of a tensor. Class is a class or function.
enum class PickleKind : u8 {
  None,
  Bool,
  Integer,
  Float,
  Text,
  Bytes,
  Tuple,
  List,
  Dict,
  Set,
  Class,
  Object,
  Persistent
};
std::string_view name_of(PickleKind kind);

/// Value in a pickle. Values may refer to one another in cycles, and many times to the same value, so code must descend
/// only into values whose structure it knows.
struct PickleValue {
  PickleKind kind = PickleKind::None;
  i64 integer = 0;        ///< Bool, Integer
  double number = 0;      ///< Float
  std::string_view text;  ///< Text, Bytes: the content. Class, Object: "module.name" of the class or function
  std::vector<const PickleValue*> items;   ///< elements; Dict: keys and values alternate; Persistent: the reference
  const PickleValue* arguments = nullptr;  ///< Object: a Tuple
  const PickleValue* state = nullptr;      ///< Object: the state that the class would restore; nullptr if there is none

  bool is(PickleKind wanted) const { return kind == wanted; }
  bool is_text(std::string_view wanted) const { return kind == PickleKind::Text && text == wanted; }
  bool is_object(std::string_view wanted) const { return kind == PickleKind::Object && text == wanted; }
  /// Returns the value of a key of a Dict or, for an Object, of its state; nullptr if it is absent. Of equal keys, the
  /// last one counts.
  const PickleValue* find(std::string_view key) const;
};

/// Parsed pickle. Owns its values, which refer to the parsed bytes.
class Pickle {
 public:
  /// Parses a pickle, which may be followed by other bytes. `source` names it in messages. Pickles are untrusted:
  /// throws BadInput, with the byte offset, for malformed ones and for classes that are not known. Memory is
  /// proportional to the size of the pickle and limited, and nesting is limited.
  Pickle(std::span<const std::byte> bytes, std::string source);
  Pickle(Pickle&&) = default;

  const PickleValue& root() const { return *root_; }
  const std::string& source() const { return source_; }

 private:
  class Machine;

  std::string source_;
  std::deque<PickleValue> values_;
  std::set<std::string, std::less<>> classes_;  // names of the classes that occur
  const PickleValue* root_ = nullptr;
};

}  // namespace mcpp
