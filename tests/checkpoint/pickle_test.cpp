// Pickles are read without running code; hostile ones are rejected. The bytes were written by Python's pickle module or
// assembled from its opcodes.
#include "checkpoint/format/pickle.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/support/errors.h"

namespace mcpp {
namespace {

using namespace std::string_literals;
using test::error_of;

Pickle parse(std::string_view text) {
  return {std::as_bytes(std::span(text)), "x.pkl"};
}

/// Returns the error of a pickle of protocol 2 with these opcodes.
std::string error_with(const std::string& opcodes) {
  return error_of([&] { parse("\x80\x02"s + opcodes); });
}

TEST(PickleTest, ReadsValuesOfAllKinds) {
  // A dict as pickle.dumps(x, 2) writes it, whose entry "b" is a pair of the list of entry "a".
  const std::string two =
      "\x80\x02}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xff\x8a\6\0\0\0\0\0\1\x88NG@\4\0\0\0\0\0\0eX\1\0\0\0b"
      "q\3h\2h\2\x86q\4u."s;
  const Pickle pickle = parse(two);
  const PickleValue* list = pickle.root().find("a");
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 6);
  EXPECT_EQ(list->items[0]->integer, 1);
  EXPECT_EQ(list->items[1]->integer, -2);
  EXPECT_EQ(list->items[2]->integer, i64{1} << 40);
  EXPECT_EQ(list->items[3]->kind, PickleKind::Bool);
  EXPECT_EQ(list->items[4]->kind, PickleKind::None);
  EXPECT_EQ(list->items[5]->number, 2.5);
  EXPECT_EQ(pickle.root().find("b")->items[1], list);
  EXPECT_EQ(pickle.root().find("c"), nullptr);
}

TEST(PickleTest, RecordsObjectsWithoutCreatingThem) {
  const std::string pickle_bytes =
      "\x80\x04\x8c\x08"
      "argparse\x8c\x09Namespace\x93)\x81}(\x8c\5layer\x8c\3two\x8c\4size"
      "K\3ub."s;
  const Pickle pickle = parse(pickle_bytes);
  EXPECT_TRUE(pickle.root().is_object("argparse.Namespace"));
  ASSERT_NE(pickle.root().find("size"), nullptr);
  EXPECT_EQ(pickle.root().find("size")->integer, 3);
  EXPECT_TRUE(pickle.root().find("layer")->is_text("two"));
}

TEST(PickleTest, RejectsUnknownClassesByName) {
  // pickle.dumps() writes these bytes for an object whose __reduce__ returns (os.system, ("id",)).
  EXPECT_CONTAINS(error_with("cposix\nsystem\nX\2\0\0\0id\x85R."s), "x.pkl: pickle byte 2: refers to posix.system");
  EXPECT_CONTAINS(error_with("cos\nsystem\nX\2\0\0\0id\x85R."s), "os.system, which is not a class of checkpoints");
  EXPECT_CONTAINS(error_with("cbuiltins\neval\nX\1\0\0\0"
                             "1\x85R."),
                  "builtins.eval");
  EXPECT_CONTAINS(error_with("cbuiltins\ngetattr\n."), "builtins.getattr");
  EXPECT_CONTAINS(error_with("ctorch\nload\n."), "torch.load");
  EXPECT_CONTAINS(error_with("ccollections\nOrderedDict.__init__\n."), "OrderedDict.__init__");
  EXPECT_CONTAINS(error_with("X\2\0\0\0osX\6\0\0\0system\x93."s), "byte 20: refers to os.system");
  EXPECT_CONTAINS(error_with("c\n\n."), "refers to .");
}

TEST(PickleTest, RejectsCallsOfValuesThatAreNotClasses) {
  EXPECT_CONTAINS(error_with("X\2\0\0\0id)R."s), "calls text instead of a class");
  EXPECT_CONTAINS(error_with("ctorch\nSize\n]R."), "a list instead of a tuple");
  // __setstate__ of the result of a call, of a class, and of a number.
  EXPECT_CONTAINS(error_with("ctorch\nSize\n}b."), "restores the state of a class");
  EXPECT_CONTAINS(error_with("K\1}b."), "restores the state of an integer");
  EXPECT_CONTAINS(error_with("ccollections\nOrderedDict\n](K\1K\2e\x85R."), "creates a dict from a list");
  const std::string nested_bytes =
      "\x80\x02"
      "ctorch\nSize\n)R"
      "ctorch\nSize\n)R"
      "b."s;
  const Pickle nested = parse(nested_bytes);
  EXPECT_TRUE(nested.root().state->is_object("torch.Size"));  // recorded, not restored
}

TEST(PickleTest, RejectsOpcodesThatTorchDoesNotWrite) {
  for (const char* opcode : {"I1\n.", "S'a'\n.", "Va\n.", "i__main__\nA\n.", "(o.", "\x82\1.", "Pid\n.", "g0\n."})
    EXPECT_CONTAINS(error_with(opcode), "unsupported opcode") << opcode;
  EXPECT_CONTAINS(error_of([] { parse("(lp0\n."); }), "protocol 2 or later");
  EXPECT_CONTAINS(error_of([] { parse(""); }), "protocol 2 or later");
  EXPECT_CONTAINS(error_of([] { parse("\x80\x06N."); }), "has protocol 6");
}

TEST(PickleTest, RejectsMalformedStacks) {
  EXPECT_CONTAINS(error_with("."), "ends with 0 values");
  EXPECT_CONTAINS(error_with("NN."), "ends with 2 values");
  EXPECT_CONTAINS(error_with("("), "needs 1 bytes");
  EXPECT_CONTAINS(error_with("(."), "ends with 0 values");
  EXPECT_CONTAINS(error_with("N(\x85."), "the stack is empty");  // below the mark
  EXPECT_CONTAINS(error_with("t."), "needs a mark");
  EXPECT_CONTAINS(error_with("a."), "the stack is empty");
  EXPECT_CONTAINS(error_with("}(K\1u."), "a key without a value");
  EXPECT_CONTAINS(error_with("]K\1K\2s."), "appends to a list instead of a dict");
  EXPECT_CONTAINS(error_with("h\7."), "entry 7 of the memo, which is not set");
  EXPECT_CONTAINS(error_with("q\0."s), "the stack is empty");
}

TEST(PickleTest, RejectsSizesBeyondEnd) {
  EXPECT_CONTAINS(error_with("X\xff\xff\xff\xff"
                             "abc."),
                  "needs 4294967295 bytes, but only 4 follow");
  EXPECT_CONTAINS(error_with("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                             "abc."),
                  "needs 18446744073709551615 bytes");
  EXPECT_CONTAINS(error_with("\x8b\xff\xff\xff\x7f."), "needs 2147483647 bytes");
  EXPECT_CONTAINS(error_with("ctorch"), "a line without an end");
}

TEST(PickleTest, LimitsNesting) {
  EXPECT_CONTAINS(error_with(std::string(1'000'000, '(') + "."), "nested deeper than 200 levels");
  // Tuples in tuples need no marks. Their destruction does not recurse.
  std::string tuples = "\x80\x02N";
  for (int i = 0; i < 1'000'000; ++i) tuples += "\x85";
  EXPECT_EQ(parse(tuples + ".").root().items.size(), 1);
}

TEST(PickleTest, SharesRepeatedValues) {
  // Each list has the previous one twice: 2^1000 elements if they were copied.
  std::string bomb = "\x80\x02]q\0"s;
  for (int i = 0; i < 250; ++i) {
    const char index = static_cast<char>(i), next = static_cast<char>(i + 1);
    bomb += "](h"s + index + "h" + index + "eq" + next;
  }
  EXPECT_CONTAINS(error_of([&] { parse(bomb + "."); }), "ends with 251 values");
  // A call with a long tuple of arguments, repeated.
  std::string calls = "\x80\x02(";
  for (int i = 0; i < 100'000; ++i) calls += "N";
  calls += "tq\0]("s;
  for (int i = 0; i < 100'000; ++i) calls += "ctorch\nSize\nh\0R"s;
  EXPECT_CONTAINS(error_of([&] { parse(calls + "e."); }), "ends with 2 values");
  // A list that contains itself.
  EXPECT_EQ(parse("\x80\x02]q\0h\0a."s).root().items.size(), 1);
}

}  // namespace
}  // namespace mcpp
