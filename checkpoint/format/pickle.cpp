#include "checkpoint/format/pickle.h"

#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "checkpoint/format/pickle_classes.h"

namespace mcpp {
namespace {

constexpr std::size_t kMaxValues = 50'000'000;  // bounds memory to a few GiB
constexpr std::size_t kMaxMarks = 200;          // nesting of containers that are open
constexpr i64 kMaxProtocol = 5;
constexpr std::size_t kMaxQuoted = 100;

/// Opcodes, named as in Python's pickletools.
enum class Opcode : u8 {
  Mark = '(',
  Stop = '.',
  Pop = '0',
  PopMark = '1',
  BinFloat = 'G',
  BinInt = 'J',
  BinInt1 = 'K',
  BinInt2 = 'M',
  None = 'N',
  BinPersId = 'Q',
  Reduce = 'R',
  BinString = 'T',
  ShortBinString = 'U',
  BinUnicode = 'X',
  EmptyList = ']',
  Append = 'a',
  Build = 'b',
  Global = 'c',
  Dict = 'd',
  Appends = 'e',
  BinGet = 'h',
  LongBinGet = 'j',
  List = 'l',
  BinPut = 'q',
  LongBinPut = 'r',
  SetItem = 's',
  Tuple = 't',
  EmptyTuple = ')',
  SetItems = 'u',
  EmptyDict = '}',
  Proto = 0x80,
  NewObj = 0x81,
  Tuple1 = 0x85,
  Tuple2 = 0x86,
  Tuple3 = 0x87,
  NewTrue = 0x88,
  NewFalse = 0x89,
  Long1 = 0x8a,
  Long4 = 0x8b,
  BinBytes = 'B',
  ShortBinBytes = 'C',
  ShortBinUnicode = 0x8c,
  BinUnicode8 = 0x8d,
  BinBytes8 = 0x8e,
  EmptySet = 0x8f,
  AddItems = 0x90,
  FrozenSet = 0x91,
  NewObjEx = 0x92,
  StackGlobal = 0x93,
  Memoize = 0x94,
  Frame = 0x95,
  ByteArray8 = 0x96,
};

/// Returns text for messages, of limited length and without control characters.
std::string quoted(std::string_view text) {
  std::string result(text.substr(0, kMaxQuoted));
  for (char& c : result) c = static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return text.size() > kMaxQuoted ? result + "..." : result;
}

bool creates_dict(std::string_view callee) {
  return callee == "collections.OrderedDict" || callee == "collections.defaultdict" || callee == "builtins.dict" ||
         callee == "__builtin__.dict" || callee == "collections.Counter";
}

}  // namespace

std::string_view name_of(PickleKind kind) {
  constexpr std::string_view kNames[]{"None",   "a bool", "an integer", "a float", "text",      "bytes",      "a tuple",
                                      "a list", "a dict", "a set",      "a class", "an object", "a reference"};
  return kNames[static_cast<std::size_t>(kind)];
}

const PickleValue* PickleValue::find(std::string_view key) const {
  const PickleValue* dict = kind == PickleKind::Object ? state : this;
  if (!dict || dict->kind != PickleKind::Dict) return nullptr;
  for (std::size_t i = dict->items.size(); i >= 2; i -= 2)
    if (dict->items[i - 2]->is_text(key)) return dict->items[i - 1];
  return nullptr;
}

/// Stack machine that runs the opcodes of a pickle.
class Pickle::Machine {
 public:
  Machine(std::span<const std::byte> bytes, Pickle& pickle) : bytes_(bytes), pickle_(pickle) {}

  const PickleValue* run() {
    require(peek() == Opcode::Proto, "does not begin with the header of pickle protocol 2 or later");
    while (true) {
      at_ = next_;
      const auto opcode = static_cast<Opcode>(number<u8>());
      if (opcode == Opcode::Stop) break;
      if (!run_constant(opcode) && !run_container(opcode) && !run_object(opcode) && !run_memo(opcode))
        refuse("has the unsupported opcode ", static_cast<int>(opcode));
    }
    require(marks_.empty() && stack_.size() == 1, "ends with ", stack_.size(), " values instead of one");
    return stack_[0];
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ExitCode::BadInput, pickle_.source_, ": pickle byte ", at_, ": ", parts...);
  }
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) refuse(parts...);
  }

  Opcode peek() const { return bytes_.empty() ? Opcode::Stop : static_cast<Opcode>(bytes_[next_]); }

  std::string_view take(u64 size) {
    require(size <= bytes_.size() - next_, "needs ", size, " bytes, but only ", bytes_.size() - next_, " follow");
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + next_;
    next_ += size;
    return {begin, static_cast<std::size_t>(size)};
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view line() {
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + next_;
    const void* end = std::memchr(begin, '\n', bytes_.size() - next_);
    require(end != nullptr, "has a line without an end");
    const std::string_view text = take(static_cast<u64>(static_cast<const char*>(end) - begin));
    take(1);
    return text;
  }

  // The stack.

  PickleValue& push(PickleKind kind) {
    require(pickle_.values_.size() < kMaxValues, "has more than ", kMaxValues, " values");
    PickleValue& value = pickle_.values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return value;
  }
  void push_integer(PickleKind kind, i64 integer) { push(kind).integer = integer; }
  void push_text(PickleKind kind, std::string_view text) { push(kind).text = text; }
  /// Number of values below the last mark.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* top() const {
    require(stack_.size() > floor(), "needs a value, but the stack is empty");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  /// Removes the last mark and the values above it. Returns the values.
  std::vector<const PickleValue*> pop_to_mark() {
    require(!marks_.empty(), "needs a mark, but there is none");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_items(PickleKind kind, std::vector<const PickleValue*> items) { push(kind).items = std::move(items); }
  void push_tuple(std::size_t size) {
    std::vector<const PickleValue*> items(size);
    for (std::size_t i = size; i > 0; --i) items[i - 1] = pop();
    push_items(PickleKind::Tuple, std::move(items));
  }
  /// Appends to the container at the top of the stack.
  void append(PickleKind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* to = top();
    require(to->kind == kind, "appends to ", name_of(to->kind), " instead of ", name_of(kind));
    require(kind != PickleKind::Dict || items.size() % 2 == 0, "has a key without a value");
    to->items.insert(to->items.end(), items.begin(), items.end());
  }

  // Opcodes. Each function returns false for opcodes of other functions.

  void push_long(u64 size) {
    const std::string_view digits = take(size);
    if (size > sizeof(i64)) return push_text(PickleKind::Bytes, digits);
    i64 value = 0;
    std::memcpy(&value, digits.data(), digits.size());
    const int unused = 64 - 8 * static_cast<int>(size);
    push_integer(PickleKind::Integer, size == 0 ? 0 : static_cast<i64>(static_cast<u64>(value) << unused) >> unused);
  }

  bool run_constant(Opcode opcode) {
    switch (opcode) {
      case Opcode::Proto: {
        const i64 protocol = number<u8>();
        require(protocol >= 2 && protocol <= kMaxProtocol, "has protocol ", protocol, "; 2 to ", kMaxProtocol,
                " can be read");
        return true;
      }
      case Opcode::Frame:
        number<u64>();
        return true;
      case Opcode::None:
        push(PickleKind::None);
        return true;
      case Opcode::NewTrue:
      case Opcode::NewFalse:
        push_integer(PickleKind::Bool, opcode == Opcode::NewTrue);
        return true;
      case Opcode::BinInt:
        push_integer(PickleKind::Integer, number<i32>());
        return true;
      case Opcode::BinInt1:
        push_integer(PickleKind::Integer, number<u8>());
        return true;
      case Opcode::BinInt2:
        push_integer(PickleKind::Integer, number<u16>());
        return true;
      case Opcode::Long1:
        push_long(number<u8>());
        return true;
      case Opcode::Long4:
        push_long(number<u32>());
        return true;
      case Opcode::BinFloat: {
        push(PickleKind::Float).number = std::bit_cast<double>(__builtin_bswap64(number<u64>()));
        return true;
      }
      default:
        return run_text(opcode);
    }
  }

  bool run_text(Opcode opcode) {
    switch (opcode) {
      case Opcode::ShortBinString:
      case Opcode::ShortBinUnicode:
        push_text(PickleKind::Text, take(number<u8>()));
        return true;
      case Opcode::BinString:
      case Opcode::BinUnicode:
        push_text(PickleKind::Text, take(number<u32>()));
        return true;
      case Opcode::BinUnicode8:
        push_text(PickleKind::Text, take(number<u64>()));
        return true;
      case Opcode::ShortBinBytes:
        push_text(PickleKind::Bytes, take(number<u8>()));
        return true;
      case Opcode::BinBytes:
        push_text(PickleKind::Bytes, take(number<u32>()));
        return true;
      case Opcode::BinBytes8:
      case Opcode::ByteArray8:
        push_text(PickleKind::Bytes, take(number<u64>()));
        return true;
      default:
        return false;
    }
  }

  bool run_container(Opcode opcode) {
    switch (opcode) {
      case Opcode::Mark:
        require(marks_.size() < kMaxMarks, "is nested deeper than ", kMaxMarks, " levels");
        marks_.push_back(stack_.size());
        return true;
      case Opcode::EmptyTuple:
        push(PickleKind::Tuple);
        return true;
      case Opcode::EmptyList:
        push(PickleKind::List);
        return true;
      case Opcode::EmptyDict:
        push(PickleKind::Dict);
        return true;
      case Opcode::EmptySet:
        push(PickleKind::Set);
        return true;
      case Opcode::Tuple1:
      case Opcode::Tuple2:
      case Opcode::Tuple3:
        push_tuple(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::Tuple1) + 1);
        return true;
      case Opcode::Tuple:
        push_items(PickleKind::Tuple, pop_to_mark());
        return true;
      case Opcode::List:
        push_items(PickleKind::List, pop_to_mark());
        return true;
      case Opcode::FrozenSet:
        push_items(PickleKind::Set, pop_to_mark());
        return true;
      default:
        return run_items(opcode);
    }
  }

  bool run_items(Opcode opcode) {
    switch (opcode) {
      case Opcode::Dict: {
        std::vector<const PickleValue*> items = pop_to_mark();
        require(items.size() % 2 == 0, "has a key without a value");
        push_items(PickleKind::Dict, std::move(items));
        return true;
      }
      case Opcode::Append: {
        const PickleValue* item = pop();
        append(PickleKind::List, {item});
        return true;
      }
      case Opcode::Appends:
        append(PickleKind::List, pop_to_mark());
        return true;
      case Opcode::AddItems:
        append(PickleKind::Set, pop_to_mark());
        return true;
      case Opcode::SetItem: {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        append(PickleKind::Dict, {key, value});
        return true;
      }
      case Opcode::SetItems:
        append(PickleKind::Dict, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  void push_class(std::string_view module, std::string_view name) {
    require(is_known_pickle_class(module, name), "refers to ", quoted(module), ".", quoted(name),
            ", which is not a class of checkpoints that can be read; nothing was executed");
    push_text(PickleKind::Class, *pickle_.classes_.insert(str(module, ".", name)).first);
  }

  /// Pushes the result of calling `callee`: a dict, or a record of the call.
  void push_object(const PickleValue* callee, const PickleValue* arguments) {
    require(callee->is(PickleKind::Class), "calls ", name_of(callee->kind), " instead of a class");
    require(arguments->is(PickleKind::Tuple), "passes ", name_of(arguments->kind), " instead of a tuple of arguments");
    if (creates_dict(callee->text)) {
      for (const PickleValue* argument : arguments->items)
        require(!argument->is(PickleKind::List), "creates a dict from a list, as only Python 2 does");
      push(PickleKind::Dict);
      return;
    }
    push_text(PickleKind::Object, callee->text);
    stack_.back()->arguments = arguments;  // not copied, because many objects may have the same arguments
  }

  bool run_object(Opcode opcode) {
    switch (opcode) {
      case Opcode::Global: {
        const std::string_view module = line(), name = line();
        push_class(module, name);
        return true;
      }
      case Opcode::StackGlobal: {
        const PickleValue* name = pop();
        const PickleValue* module = pop();
        require(name->is(PickleKind::Text) && module->is(PickleKind::Text), "has a class whose name is not text");
        push_class(module->text, name->text);
        return true;
      }
      case Opcode::NewObjEx:
        require(pop()->items.empty(), "creates an object with named arguments");
        [[fallthrough]];
      case Opcode::Reduce:
      case Opcode::NewObj: {
        const PickleValue* arguments = pop();
        push_object(pop(), arguments);
        return true;
      }
      case Opcode::Build: {
        const PickleValue* state = pop();
        PickleValue* object = top();
        require(object->is(PickleKind::Object) || object->is(PickleKind::Dict), "restores the state of ",
                name_of(object->kind));
        object->state = state;
        return true;
      }
      case Opcode::BinPersId: {
        const PickleValue* reference = pop();
        push_items(PickleKind::Persistent, {reference});
        return true;
      }
      default:
        return false;
    }
  }

  void store(u64 index) { memo_[index] = top(); }
  void load(u64 index) {
    const auto found = memo_.find(index);
    require(found != memo_.end(), "uses entry ", index, " of the memo, which is not set");
    stack_.push_back(found->second);
  }

  bool run_memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::BinPut:
        store(number<u8>());
        return true;
      case Opcode::LongBinPut:
        store(number<u32>());
        return true;
      case Opcode::Memoize:
        store(memo_.size());
        return true;
      case Opcode::BinGet:
        load(number<u8>());
        return true;
      case Opcode::LongBinGet:
        load(number<u32>());
        return true;
      case Opcode::Pop:
        // The mark counts as a value.
        if (!marks_.empty() && stack_.size() == marks_.back())
          marks_.pop_back();
        else
          pop();
        return true;
      case Opcode::PopMark:
        pop_to_mark();
        return true;
      default:
        return false;
    }
  }

  std::span<const std::byte> bytes_;
  Pickle& pickle_;
  std::size_t at_ = 0, next_ = 0;  // offsets of the current opcode, and of the next byte
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<u64, PickleValue*> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, std::string source) : source_(std::move(source)) {
  root_ = Machine(bytes, *this).run();
}

}  // namespace mcpp
