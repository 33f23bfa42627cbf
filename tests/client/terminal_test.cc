#include "client/terminal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "client/console.h"
#include "client/generation.h"
#include "client/metrics_scrape.h"

namespace sluice {
namespace {

TEST(RenderProgress, DrawsTheShare) {
  EXPECT_EQ(RenderProgress("loading", 0, 4), "loading [----]   0 %");
  EXPECT_EQ(RenderProgress("loading", 0.5, 4), "loading [##--]  50 %");
  EXPECT_EQ(RenderProgress("loading", 0.999, 4), "loading [###-]  99 %");
  EXPECT_EQ(RenderProgress("loading", 1, 4), "loading [####] 100 %");
}

TEST(RenderProgress, CutsNonsense) {
  EXPECT_EQ(RenderProgress("x", -1, 2), "x [--]   0 %");
  EXPECT_EQ(RenderProgress("x", 7, 2), "x [##] 100 %");
  EXPECT_EQ(RenderProgress("x", std::nan(""), 2), "x [--]   0 %");
}

TEST(ProgressBar, ClearsItselfAndIsSilentWithoutATerminal) {
  std::ostringstream tty, pipe;
  {
    ProgressBar bar(&tty, true), silent(&pipe, false);
    for (ProgressBar* each : {&bar, &silent}) {
      each->Show("a", 0.5);
      each->Show("a", 0.5);
    }
  }
  EXPECT_EQ(tty.str(), "\r\x1b[K" + RenderProgress("a", 0.5, 32) + "\r\x1b[K");
  EXPECT_EQ(pipe.str(), "");
}

TEST(PrintableText, DropsControlCharactersAndKeepsText) {
  EXPECT_EQ(PrintableText("a\x1b]0;x\x07"
                          "b\r\n\tc\x7F"),
            "a]0;xb\n\tc");
  EXPECT_EQ(PrintableText("\xC2\x9B"
                          "2J\xC2\xA7 \xC3\xA9"),
            "2J\xC2\xA7 \xC3\xA9");  // U+009B is an escape
}

TEST(DescribeProgress, TellsLayersAndWhatIsKnown) {
  v1::Progress progress;
  EXPECT_EQ(DescribeProgress(progress).label, "waiting for a worker");
  progress.set_stage(v1::Progress::PREFILL);
  progress.set_processed(3);
  progress.set_total(12);
  EXPECT_EQ(DescribeProgress(progress).label, "reading the prompt, layer 3 of 12");
  EXPECT_DOUBLE_EQ(DescribeProgress(progress).fraction, 0.25);
  progress.set_cached(100);
  EXPECT_EQ(DescribeProgress(progress).label, "reading the prompt, layer 3 of 12, 100 tokens known");
}

TEST(FindMetric, TakesTheNameAsAWhole) {
  constexpr char kText[] =
      "# HELP sluice_x Some.\nsluice_x_total 3\nsluice_x{model=\"a b\",role=\"prefill\"} 0.25\nsluice_y 1\n";
  EXPECT_EQ(FindMetric(kText, "sluice_x"), 0.25);
  EXPECT_EQ(FindMetric(kText, "sluice_y"), 1);
  EXPECT_EQ(FindMetric(kText, "sluice_z"), std::nullopt);
  EXPECT_EQ(FindMetric("sluice_x abc\n", "sluice_x"), std::nullopt);
}

}  // namespace
}  // namespace sluice
