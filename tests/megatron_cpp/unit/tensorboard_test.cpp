#include <gtest/gtest.h>

#include "megatron_cpp/monitor/tensorboard_sink.h"
#include "tests/support/errors.h"
#include "tests/support/readers/event_reader.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

/// RFC 3720, section B.4.
TEST(EventFileTest, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(crc32c(std::string(rising.rbegin(), rising.rend())), 0x113FDB5Cu);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

/// Every file of TensorFlow starts with these bytes: length 24 of the version's record, and its checksum.
TEST(EventFileTest, FrameMatchesTensorFlow) {
  const std::string frame = framed_record(EventRecord::file_header(1.5));
  EXPECT_EQ(frame.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xA3\x7F\x4B\x22", 12));
  EXPECT_EQ(frame.size(), 12u + 24u + 4u);
}

TEST(EventFileTest, ReadsOnlyCompleteRecordsAndStopsAtDamage) {
  const std::string two = framed_record("first") + framed_record("");
  std::string_view rest = two, record;
  ASSERT_TRUE(next_record(rest, record));
  EXPECT_EQ(record, "first");
  ASSERT_TRUE(next_record(rest, record));
  EXPECT_EQ(record, "");
  EXPECT_FALSE(next_record(rest, record));
  for (std::size_t size = 0; size < two.size(); ++size) {
    rest = std::string_view(two).substr(0, size);
    EXPECT_EQ(next_record(rest, record), size >= 21) << size;
  }
  for (std::size_t at = 0; at < 21; ++at) {
    std::string damaged = two;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    rest = damaged;
    EXPECT_FALSE(next_record(rest, record)) << at;
    EXPECT_EQ(rest.size(), damaged.size());
  }
}

void write_steps(const Path& folder, i64 first, i64 last, const TensorboardWriter::KeepEventFn& keeps) {
  const Log log;
  TensorboardWriter writer(folder, log);
  writer.begin(keeps);
  for (i64 step = first; step <= last; ++step) {
    EventRecord event(wall_seconds(), step), samples(wall_seconds(), 8 * step);
    event.add_scalar("lm loss", 0.5 + static_cast<double>(step));
    event.add_scalar("lm loss validation", 2);
    samples.add_scalar("lm loss vs samples", 1);
    writer.write(event);
    writer.write(samples);
  }
}

TEST(TensorboardWriterTest, ResumedRunHasEachStepOnce) {
  const test::ScratchFolder folder;
  write_steps(folder.path(), 1, 5, nullptr);
  const Path first = *std::filesystem::directory_iterator(folder.path());
  write_file_atomic(first, read_text_file(first) + "cut off");
  EXPECT_EQ(test::read_events(folder.path()).unread, 7u);
  const auto keeps = [](i64 step, std::string_view tag) {
    return is_valid_after_resume(step, tag, {.iteration = 3, .consumed_samples = 24, .evaluations = {"validation"}});
  };
  write_steps(folder.path(), 4, 6, keeps);
  const test::Events events = test::read_events(folder.path());
  EXPECT_EQ(events.steps("lm loss"), (std::vector<i64>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(events.steps("lm loss vs samples"), (std::vector<i64>{8, 16, 24, 32, 40, 48}));
  EXPECT_EQ(events.scalars.at("lm loss").at(3).second, 4.5F);
  EXPECT_EQ(events.unread, 0u);
  EXPECT_EQ(events.versions, (std::vector<std::string>{"brain.Event:2", "brain.Event:2"}));
}

/// TensorBoard uses the last values that it reads, so file names must increase with every start, independently of
/// clocks.
TEST(TensorboardWriterTest, FileNamesIncreaseWithEveryStart) {
  const test::ScratchFolder folder;
  const auto all = [](i64, std::string_view) { return true; };
  for (i64 start = 1; start <= 12; ++start) write_steps(folder.path(), start, start, all);
  EXPECT_EQ(folder.count(), 12u);
  EXPECT_EQ(test::read_events(folder.path()).steps("lm loss"),
            (std::vector<i64>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
}

TEST(TensorboardWriterTest, NewRunRenamesOldEventsAndKeepsForeignFiles) {
  const test::ScratchFolder folder;
  write_steps(folder.path(), 1, 5, nullptr);
  write_file_atomic(folder / "events.out.tfevents.123.other", "");
  write_steps(folder.path(), 1, 2, nullptr);
  EXPECT_EQ(test::read_events(folder.path()).steps("lm loss"), (std::vector<i64>{1, 2}));
  EXPECT_EQ(folder.count(), 3u);
}

TEST(TensorboardWriterTest, DropsEvaluationsThatWillBeRepeated) {
  const ResumePoint at{.iteration = 10, .consumed_samples = 80, .evaluations = {"validation"}};
  EXPECT_TRUE(is_valid_after_resume(10, "lm loss", at));
  EXPECT_FALSE(is_valid_after_resume(11, "lm loss", at));
  EXPECT_TRUE(is_valid_after_resume(80, "lm loss vs samples", at));
  EXPECT_FALSE(is_valid_after_resume(88, "lm loss vs samples", at));
  for (const std::string twin : {"", " vs samples"}) {
    const i64 step = twin.empty() ? 10 : 80;
    EXPECT_TRUE(is_valid_after_resume(step, "lm loss validation" + twin, at));
    EXPECT_TRUE(is_valid_after_resume(step, "lm loss validation ppl" + twin, at));
    EXPECT_FALSE(is_valid_after_resume(step, "lm loss test" + twin, at));
    EXPECT_FALSE(is_valid_after_resume(step, "lm loss test ppl" + twin, at));
    EXPECT_TRUE(is_valid_after_resume(step - 1, "lm loss test" + twin, at));
  }
  for (const char* tag :
       {"lm loss validation-books", "lm loss validation-books ppl", "lm loss validation-books vs samples"})
    EXPECT_FALSE(is_valid_after_resume(at.iteration, tag,
                                       {.iteration = 10, .consumed_samples = 10, .evaluations = {"validation"}}))
        << tag;
  EXPECT_FALSE(is_valid_after_resume(10, "configuration", at));  // each start writes it again
}

TEST(TensorboardWriterTest, RejectsUnusableFolder) {
  const test::ScratchFolder folder;
  const Log log;
  write_file_atomic(folder / "file", "");
  const std::string refused = test::error_of([&] { TensorboardWriter(folder / "file", log); });
  EXPECT_CONTAINS(refused, "logging.tensorboard_dir: ");
  EXPECT_CONTAINS(refused, "is a file; set a folder");
  EXPECT_THROW(TensorboardWriter(folder / "file" / "below", log), Error);
}

TEST(TensorboardWriterTest, HistogramsAndTextsRoundTrip) {
  EventRecord event(1, 7);
  const std::vector<double> limits{0, 1}, counts{2, 3};
  event.add_histogram(
      "weights",
      {.min = -1, .max = 1, .count = 5, .sum = 2.5, .sum_of_squares = 4, .limits = limits, .counts = counts});
  event.add_text("configuration", "[model]");
  test::Events events;
  const test::ScratchFolder folder;
  write_file_atomic(folder / "tfevents", framed_record(event.bytes()));
  test::add_file(folder / "tfevents", events);
  EXPECT_EQ(events.texts.at("configuration"), (std::vector<std::pair<i64, std::string>>{{7, "[model]"}}));
  const std::string histogram = events.histograms.at("weights").at(0).second;
  double number = 0;
  std::memcpy(&number, test::field_of(histogram, 3).bytes.data(), sizeof(number));
  EXPECT_EQ(number, 5);
  EXPECT_EQ(test::field_of(histogram, 7).bytes.size(), 16u);
  EXPECT_EQ(parse_event_key(event.bytes(), "").tag, "weights");
  EXPECT_EQ(parse_event_key(event.bytes(), "").step, 7);
}

}  // namespace
}  // namespace mcpp
