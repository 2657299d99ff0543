// Destinations of metrics outside the run: OTLP collectors, alert commands and webhooks.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>

#include "base/file.h"
#include "base/json.h"
#include "megatron_cpp/monitor/alert_sink.h"
#include "megatron_cpp/monitor/otlp_sink.h"
#include "tests/support/errors.h"
#include "tests/support/http_server.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {
namespace {

const BackgroundDelivery::Limits kFast{.first_pause = 0.01, .max_pause = 0.02, .max_closing_seconds = 10};

/// Sets an environment variable for a test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~ScopedVariable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

/// Returns {metric: value} of an OTLP message.
std::map<std::string, double> gauges_of(const std::string& body) {
  std::map<std::string, double> values;
  const Json message = Json::parse(body);
  for (const Json& metric : message.at("resourceMetrics").at(0).at("scopeMetrics").at(0).at("metrics")) {
    const Json& point = metric.at("gauge").at("dataPoints").at(0);
    EXPECT_GT(std::stoull(point.at("timeUnixNano").get<std::string>()), 1'600'000'000'000'000'000u);
    values[metric.at("name")] =
        point.contains("asInt") ? std::stod(point.at("asInt").get<std::string>()) : point.at("asDouble").get<double>();
  }
  return values;
}

IterationStats line_at(i64 iteration) {
  return {.iteration = iteration,
          .train_iters = 10,
          .consumed_samples = 4 * iteration,
          .learning_rate = 1e-3,
          .lm_loss = 2.5,
          .grad_norm = std::numeric_limits<double>::infinity(),
          .tokens_per_second = 1000,
          .mfu = 0.5};
}

TEST(OtlpSinkTest, SendsLinesEvaluationsAndEvents) {
  const HttpServer server;
  const Log log;
  {
    OtlpSink sink(otlp_target(server.url() + "/", "runs/a"), std::cref(log), kFast);
    sink.write_start({.world_size = 2, .host = "node7", .program = "", .device = "cpu", .config = ""});
    sink.write_line(line_at(3));
    sink.write_evaluation({.iteration = 3, .split = "validation", .lm_loss = 1.5});
    sink.write_event({.kind = RunEvent::Kind::Spike, .iteration = 3, .text = "loss of \"9\""});
  }
  const std::vector<ReceivedRequest> requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].method, "POST");
  EXPECT_EQ(requests[0].path, "/v1/metrics");
  EXPECT_CONTAINS(requests[0].headers, "content-type: application/json");
  const auto line = gauges_of(requests[0].body);
  EXPECT_EQ(line.at("train.iteration"), 3);
  EXPECT_EQ(line.at("train.consumed_samples"), 12);
  EXPECT_EQ(line.at("train.lm_loss"), 2.5);
  EXPECT_EQ(line.at("train.mfu"), 0.5);
  EXPECT_FALSE(line.contains("train.grad_norm")) << "JSON has no infinity";
  EXPECT_CONTAINS(requests[0].body, R"({"key":"host.name","value":{"stringValue":"node7"}})");
  EXPECT_CONTAINS(requests[0].body, R"({"key":"run.folder","value":{"stringValue":"runs/a"}})");
  EXPECT_EQ(gauges_of(requests[1].body).at("evaluation.lm_loss"), 1.5);
  EXPECT_CONTAINS(requests[1].body, R"({"key":"split","value":{"stringValue":"validation"}})");
  EXPECT_EQ(requests[2].path, "/v1/logs");
  const Json record = Json::parse(requests[2].body)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
  EXPECT_EQ(record["severityText"], "WARN");
  EXPECT_EQ(record["body"]["stringValue"], "loss of \"9\"");
}

TEST(OtlpSinkTest, ReadsStandardVariables) {
  const ScopedVariable headers("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a=b, authorization=Basic%20YTpi%3D,other=c%zz%2");
  const ScopedVariable service("OTEL_SERVICE_NAME", "pretraining");
  const ScopedVariable attributes("OTEL_RESOURCE_ATTRIBUTES", "team=llm");
  const OtlpTarget target = otlp_target("http://localhost:4318", "");
  EXPECT_EQ(target.headers, (std::vector<std::string>{"x-token: a=b", "authorization: Basic YTpi=", "other: c%zz%2"}));
  EXPECT_EQ(target.service, "pretraining");
  EXPECT_EQ(target.attributes, (std::vector<std::pair<std::string, std::string>>{{"team", "llm"}}));
}

TEST(OtlpSinkTest, RejectsMalformedVariables) {
  const ScopedVariable headers("OTEL_EXPORTER_OTLP_HEADERS", "token");
  EXPECT_CONTAINS(error_of([] { otlp_target("http://localhost:4318", ""); }), "OTEL_EXPORTER_OTLP_HEADERS: \"token\"");
}

TEST(OtlpSinkTest, RetriesInOrderWhenCollectorFails) {
  std::atomic<int> failures = 3;
  const HttpServer server([&](const ReceivedRequest&) { return Answer{.status = failures-- > 0 ? 503 : 200}; });
  const Log log;
  {
    OtlpSink sink(otlp_target(server.url(), ""), std::cref(log), kFast);
    for (i64 i = 1; i <= 3; ++i) sink.write_line(line_at(i));
    server.wait_for(6);
  }
  std::vector<double> iterations;
  for (const ReceivedRequest& request : server.requests())
    iterations.push_back(gauges_of(request.body).at("train.iteration"));
  EXPECT_EQ(iterations, (std::vector<double>{1, 1, 1, 1, 2, 3}));
}

TEST(OtlpSinkTest, DropsMessageThatCollectorRejects) {
  std::atomic<int> rejections = 1;
  const HttpServer server([&](const ReceivedRequest&) { return Answer{.status = rejections-- > 0 ? 400 : 200}; });
  const Log log;
  testing::internal::CaptureStderr();
  {
    OtlpSink sink(otlp_target(server.url(), ""), std::cref(log), kFast);
    for (i64 i = 1; i <= 2; ++i) sink.write_line(line_at(i));
  }
  EXPECT_EQ(server.requests().size(), 2u);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_CONTAINS(warnings, "HTTP status 400");
  EXPECT_CONTAINS(warnings, "1 message was not delivered");
}

TEST(BackgroundDeliveryTest, DropsOldestMessagesWhenQueueIsFull) {
  std::atomic<bool> is_open = false;
  std::vector<std::string> delivered;
  const Log log;
  {
    BackgroundDelivery delivery("receiver",
                                [&](const std::string& message) -> BackgroundDelivery::Result {
                                  if (!is_open) return {BackgroundDelivery::Outcome::Retry, "closed"};
                                  delivered.push_back(message);
                                  return {};
                                },
                                std::cref(log),
                                {.queue = 3, .first_pause = 0.01, .max_pause = 0.01, .max_closing_seconds = 10});
    for (int i = 0; i < 10; ++i) delivery.push(std::to_string(i));
    is_open = true;
  }
  ASSERT_GE(delivered.size(), 3u);
  EXPECT_EQ(std::vector<std::string>(delivered.end() - 3, delivered.end()), (std::vector<std::string>{"7", "8", "9"}));
}

TEST(BackgroundDeliveryTest, EndsInTimeWhenReceiverNeverAnswers) {
  const Log log;
  const auto start = std::chrono::steady_clock::now();
  {
    BackgroundDelivery delivery("receiver",
                                [](const std::string&) {
                                  return BackgroundDelivery::Result{BackgroundDelivery::Outcome::Retry, "no answer"};
                                },
                                std::cref(log), {.first_pause = 0.05, .max_closing_seconds = 0.3});
    delivery.push("message");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

LoggingConfig command_alerts(std::string command) {
  LoggingConfig config;
  config.alert_command = std::move(command);
  return config;
}

TEST(AlertSinkTest, RunsCommandWithEventAsInput) {
  const ScratchFolder folder;
  const Path output = folder.path() / "alerts";
  const Log log;
  {
    AlertSink sink(command_alerts("cat >>" + output.string() + "; echo >>" + output.string()), "runs/a",
                   std::cref(log));
    sink.write_start({.host = "node7", .program = "", .device = "", .config = ""});
    sink.write_event({.kind = RunEvent::Kind::Save, .iteration = 1, .text = "not an alert"});
    sink.write_event({.kind = RunEvent::Kind::Spike, .iteration = 2, .text = "the loss is 9"});
    sink.write_event({.kind = RunEvent::Kind::End, .iteration = 3, .text = "ended"});
  }
  const std::vector<std::string> lines = split(read_text_file(output), '\n');
  ASSERT_GE(lines.size(), 2u);
  const Json first = Json::parse(lines[0]), second = Json::parse(lines[1]);
  EXPECT_EQ(first["event"], "spike");
  EXPECT_EQ(first["text"], "runs/a: spike: the loss is 9");
  EXPECT_EQ(first["host"], "node7");
  EXPECT_EQ(second["iteration"], 3);
}

TEST(AlertSinkTest, PostsToWebhookOfEnvironmentVariable) {
  const HttpServer server;
  const ScopedVariable url("MCPP_TEST_WEBHOOK", (server.url() + "/hook").c_str());
  LoggingConfig config;
  config.alert_webhook = "$MCPP_TEST_WEBHOOK";
  config.alert_events = {"straggler"};
  const Log log;
  { AlertSink(config, "", std::cref(log)).write_event({.kind = RunEvent::Kind::Straggler, .text = "rank 3 is slow"}); }
  const std::vector<ReceivedRequest> requests = server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].path, "/hook");
  EXPECT_EQ(Json::parse(requests[0].body)["text"], "training: straggler: rank 3 is slow");
}

TEST(AlertSinkTest, RejectsWebhookOfMissingVariable) {
  LoggingConfig config;
  config.alert_webhook = "$MCPP_TEST_NO_SUCH_VARIABLE";
  const Log log;
  EXPECT_CONTAINS(error_of([&] { AlertSink(config, "", std::cref(log)); }),
                  "logging.alert_webhook: the environment variable MCPP_TEST_NO_SUCH_VARIABLE is not set");
}

TEST(AlertSinkTest, ReportsCommandThatFails) {
  EXPECT_EQ(run_shell_command("exit 3", "", 10), "exits with code 3");
  EXPECT_EQ(run_shell_command("kill -9 $$", "", 10), "is ended by signal 9");
  EXPECT_EQ(run_shell_command("sleep 100 & sleep 100", "", 0.2), "still runs after 0.2 seconds and is killed");
  EXPECT_EQ(run_shell_command("true", std::string(1 << 20, 'x'), 10), "") << "the command does not read its input";
}

TEST(LoggingConfigTest, RejectsReceiversThatAreNotUrls) {
  LoggingConfig config;
  config.otlp_endpoint = "localhost:4318";
  config.alert_webhook = "ftp://host";
  config.alert_events = {"spikes"};
  const std::string errors = join(config.conflicts(), "\n");
  EXPECT_CONTAINS(errors, "logging.otlp_endpoint: \"localhost:4318\" must begin with http:// or https://");
  EXPECT_CONTAINS(errors, "logging.alert_webhook: \"ftp://host\"");
  EXPECT_CONTAINS(errors, "logging.alert_events: \"spikes\" must be one of save, skip");
}

}  // namespace
}  // namespace mcpp::test
