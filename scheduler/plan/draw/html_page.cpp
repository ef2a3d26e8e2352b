// The frame of the page: its style, and what it says and does when somebody points, drags or types.
#include "plan/draw/html_page.hpp"

namespace millrace::picture {

const char* const kPageHead = R"page(
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light; font: 14px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; color: #1d1d22; }
body { margin: 0 auto; padding: 18px 24px; max-width: 1700px; }
h1 { font-size: 19px; margin: 0 0 2px; }
#figures { color: #555; margin-bottom: 10px; }
#legend span.box { display: inline-block; width: 14px; height: 12px; border-radius: 2px; margin: 0 6px 0 0; vertical-align: -1px; }
#legend span.word { margin-right: 16px; }
#controls { margin: 10px 0; display: flex; flex-wrap: wrap; gap: 4px 22px; align-items: center; }
#controls label { display: inline-flex; align-items: center; gap: 6px; color: #444; }
#controls output { min-width: 3.2em; font-variant-numeric: tabular-nums; }
button { font: inherit; padding: 2px 10px; border: 1px solid #bbb; border-radius: 5px; background: #f6f6f8; cursor: pointer; }
canvas { display: block; width: 100%; cursor: grab; border: 1px solid #e2e2e6; border-radius: 6px; }
#tip { position: fixed; pointer-events: none; background: #fffffff5; border: 1px solid #999; border-radius: 6px;
  box-shadow: 0 3px 14px #0003; padding: 8px 11px; max-width: 340px; display: none; font-size: 13px; }
#tip b { font-size: 14px; }
#ranks { margin-top: 6px; color: #555; }
#ranks span.rank { margin-left: 14px; white-space: nowrap; cursor: default; }
#ranks span.line { display: inline-block; width: 16px; height: 3px; margin-right: 5px; vertical-align: 3px; }
#help { color: #777; font-size: 12px; margin-top: 8px; }
</style></head><body>
)page";

const char* const kPageControls =
    R"page(// Which of rank predecessor and producers ended last, and how long the rank stood for it.
function waitSentence(r, i) {
  const a = data.ranks[r][i], start = times[r][i][0], free = i ? times[r][i - 1][1] : extent[0];
  let last = null;
  for (const node of a[PRODUCERS]) if (last === null || timeOf(node)[1] > timeOf(last)[1]) last = node;
  if (start <= free + 1e-9 * (extent[1] - extent[0]))
    return i ? "started at once after " + nameOf(data.ranks[r][i - 1]) : "first action of the rank";
  if (last === null) return "stood " + units(start - free) + " before it";
  return "waited " + units(start - free) + " for " + nameOf(actionOf(last)) +
    (owner[last] === r ? "" : " of rank " + owner[last]) + ", which ended at " + units(timeOf(last)[1] - extent[0]);
}

function memoryAt(r, time) {
  let value = 0;
  for (const step of curves[r]) { if (step[0] > time) break; value = step[1]; }
  return value;
}

function showTip(r, i, x, y) {
  const a = data.ranks[r][i], [start, end] = times[r][i];
  const lines = ["<b>" + nameOf(a) + "</b> on rank " + r,
    NAMES[a[OP]] + " of stage " + a[STAGE] + (data.replicas > 1 ? ", replica " + a[REPLICA] : "") +
      (a[OP] > 8 ? "" : ", micro-batch " + a[MICRO]) + (data.slices > 1 ? ", slice " + a[SLICE] : ""),
    "from " + units(start - extent[0]) + " to " + units(end - extent[0]) + ", takes " + units(end - start),
    waitSentence(r, i)];
  if (highest > 0) lines.push("memory of the rank: " + number(memoryAt(r, start)) + " at its start, " + number(memoryAt(r, end)) + " at its end");
  tip.innerHTML = lines.join("<br>");
  tip.style.display = "block";
  tip.style.left = Math.min(x + 16, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(y + 18, innerHeight - tip.offsetHeight - 8) + "px";
}

function hit(x, y) {
  const r = Math.floor((y - TOP) / (rowHeight + GAP));
  if (r < 0 || r >= data.ranks.length || x < LEFT || y - yOf(r) > rowHeight) return null;
  const time = timeAt(x), lower = y - yOf(r) > rowHeight / 2;
  const i = data.ranks[r].findIndex((a, k) =>
    times[r][k][0] <= time && time < times[r][k][1] && (!a[9] || (a[9] === 2) === lower));
  return i < 0 ? null : { r, i };
}

let dragged = null;
canvas.addEventListener("mousemove", event => {
  const box = canvas.getBoundingClientRect();
  if (dragged !== null) {
    const by = (dragged - event.clientX) / plotWidth() * (view[1] - view[0]);
    dragged = event.clientX;
    return look(view[0] + by, view[1] + by);
  }
  pointer = hit(event.clientX - box.left, event.clientY - box.top);
  if (pointer) showTip(pointer.r, pointer.i, event.clientX, event.clientY); else tip.style.display = "none";
  draw();
});
canvas.addEventListener("mouseleave", () => { pointer = null; tip.style.display = "none"; draw(); });
canvas.addEventListener("mousedown", event => { dragged = event.clientX; });
addEventListener("mouseup", () => { dragged = null; });
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX - canvas.getBoundingClientRect().left));
}, { passive: false });
addEventListener("keydown", event => {
  const by = (view[1] - view[0]) / 8, middle = (view[0] + view[1]) / 2;
  const act = { "+": () => zoom(0.8, middle), "-": () => zoom(1.25, middle), "0": () => look(...extent),
    ArrowLeft: () => look(view[0] - by, view[1] - by), ArrowRight: () => look(view[0] + by, view[1] + by) }[event.key];
  if (act) { act(); event.preventDefault(); }
});
function zoom(factor, about) { look(about + (view[0] - about) * factor, about + (view[1] - about) * factor); }
function look(from, to) {
  const length = Math.min(to - from, extent[1] - extent[0]);
  const start = Math.max(extent[0], Math.min(from, extent[1] - length));
  view = [start, start + length];
  draw();
}

function addSliders() {
  const controls = document.getElementById("controls"), scale = { f: 1, i: 1, w: 1 };
  let latency = data.latency, changed = false;
  const show = () => {
    sumLatency = changed ? latency : null;
    times = changed ? replay(scale, latency) : measured;
    pointer = null; tip.style.display = "none";
    refresh(); look(...extent);
  };
  const slider = (text, value, most, step, name, set) => {
    const label = document.createElement("label"), input = document.createElement("input"), output = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: most, step, value });
    output.textContent = name(value);
    input.addEventListener("input", () => { set(+input.value); output.textContent = name(+input.value); show(); });
    label.append(text, input, output); controls.append(label);
  };
  if (data.counts.length > 1)
    slider("micro-batches", chosen, data.counts.length - 1, 1, k => data.counts[k],
      k => { chosen = k; take(data.schedules[k]); });
  if (data.atomic) return;
  for (const [key, text] of [["f", "F"], ["i", "I"], ["w", "W"]])
    slider(text + " \u00d7", 1, 3, 0.05, x => x.toFixed(2), x => { scale[key] = x; changed = true; });
  const most = Math.max(2 * latency, data.longest);
  slider("latency", latency, most, most / 60, x => units(x), x => { latency = x; changed = true; });
  const reset = document.createElement("button");
  reset.textContent = "as simulated";
  reset.addEventListener("click", () => { controls.replaceChildren(); times = measured; sumLatency = null; refresh(); look(...extent); addSliders(); });
  controls.append(reset);
}

function addLegend() {
  const seen = new Set(data.ranks.flat().map(a => a[OP])), legend = document.getElementById("legend");
  const entry = (colour, word) => { legend.innerHTML += '<span class="box" style="background:' + colour + '"></span><span class="word">' + word + "</span>"; };
  for (const op of [...seen].sort((a, b) => a - b)) if (op < 5 || op > 8) entry(data.colours[op][0][0], NAMES[op]);
  entry("#e9e9ec", "idle");
  if (data.skips[chosen].length) entry(SKIP, "skip edge");
  data.colours[0].forEach((colour, c, all) => { if (all.length > 1) entry(colour[0], (data.replicas > 1 ? "replica " : "chunk ") + c); });
}

// Which line of the memory is which rank's; the mouse on a name brings its line out.
function addRanks() {
  const names = document.getElementById("ranks");
  if (highest > 0) names.append("memory held by");
  const show = chosen => { pointer = chosen; draw(); };
  for (let r = 0; r < data.ranks.length && highest > 0; ++r) {
    const name = document.createElement("span"), line = document.createElement("span");
    name.className = "rank"; line.className = "line"; line.style.background = data.lines[r];
    name.append(line, "rank " + r);
    name.addEventListener("mouseenter", () => show({ r, i: -1 }));
    name.addEventListener("mouseleave", () => show(null));
    names.append(name);
  }
}

refresh();
view = [...extent];
addLegend();
addRanks();
addSliders();
draw();
addEventListener("resize", draw);
const wanted = /hover=(\d+),(\d+)/.exec(location.hash);
if (wanted) {
  const [r, i] = [+wanted[1], +wanted[2]], box = canvas.getBoundingClientRect(), time = times[r][i];
  canvas.dispatchEvent(new MouseEvent("mousemove", { bubbles: true,
    clientX: box.left + xOf((time[0] + time[1]) / 2), clientY: box.top + yOf(r) + rowHeight / (data.ranks[r][i][9] === 2 ? 1.4 : 3) }));
}
</script></body></html>
)page";

}  // namespace millrace::picture
