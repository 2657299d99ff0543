# Draws the losses of bench/hyperparameter_transfer.sh over the learning rate. Reads lines
# "run <parametrization> <width> <log2 of the rate> <loss>" and "best <parametrization> <width> <log2 of the rate> <loss>".
$1 == "run" {
  sum[$2, $3, $4] += $5; ++count[$2, $3, $4]
  if (low_e == "" || $4 < low_e) low_e = $4
  if (high_e == "" || $4 > high_e) high_e = $4
}
$1 == "best" { best_e[$2, $3] = $4; best_loss[$2, $3] = $5 }

function x(left, e) { return left + (e - low_e) / (high_e - low_e) * 300 }
function y(loss) { return 64 + 220 - (loss - low) / (high - low) * 220 }
function text(px, py, anchor, words) {
  printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", px, py, anchor, words
}
function draw_panel(p, title, left,    e, i, w, path, loss) {
  text(left, 52, "start", title)
  for (loss = low; loss <= high + 1e-9; loss += 0.5) {
    printf "<path d=\"M%.1f %.1fh300\" stroke=\"#ddd\"/>\n", left, y(loss)
    text(left - 6, y(loss) + 4, "end", sprintf("%.1f", loss))
  }
  for (e = int(low_e); e <= high_e; ++e)
    text(x(left, e), 302, "middle", "2<tspan dy=\"-5\" font-size=\"9\">" e "</tspan>")
  text(left + 150, 322, "middle", "learning rate")
  for (i = 1; i <= widths_count; ++i) {
    w = width[i]; path = ""
    for (e = low_e; e <= high_e; e += 0.5) {
      if (!count[p, w, e]) continue
      loss = sum[p, w, e] / count[p, w, e]
      if (loss <= high) path = path sprintf("%s%.1f %.1f", path == "" ? "M" : "L", x(left, e), y(loss))
    }
    printf "<path d=\"%s\" fill=\"none\" stroke-width=\"2\" stroke=\"%s\"/>\n", path, color(i)
    printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x(left, best_e[p, w]), y(best_loss[p, w]), color(i)
  }
}
function color(i) { return sprintf("hsl(215,65%%,%d%%)", 75 - 50 * (i - 1) / (widths_count > 1 ? widths_count - 1 : 1)) }

END {
  widths_count = split(widths, width, ",")
  for (key in best_loss) {
    if (low == "" || best_loss[key] < low) low = best_loss[key]
    if (high == "" || best_loss[key] > high) high = best_loss[key]
  }
  low = int(low * 2) / 2; high = int(high * 2 + 2) / 2
  print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"880\" height=\"335\" viewBox=\"0 0 880 335\" font-family=\"sans-serif\" font-size=\"12\">"
  print "<rect width=\"880\" height=\"335\" fill=\"white\"/>"
  text(60, 24, "start", "held-out loss after " iterations " iterations")
  draw_panel("standard", "standard parametrization", 60)
  draw_panel("mup", "muP", 430)
  for (i = 1; i <= widths_count; ++i) {
    printf "<path d=\"M750 %.1fh16\" stroke-width=\"2\" stroke=\"%s\"/>\n", 46 + 18 * i, color(i)
    text(772, 50 + 18 * i, "start", "hidden_size " width[i])
  }
  print "</svg>"
}
