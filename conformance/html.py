"""The whole table as one HTML page that is filtered while one types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .matrix import LEGEND

# Each cell's word gives its colour. The page needs no network.
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>torch-pjrt: conformance</title>
<style>
  :root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }
  body { margin: 1.5rem; }
  form { display: flex; flex-wrap: wrap; gap: .75rem; align-items: center; margin: 1rem 0; }
  table { border-collapse: collapse; }
  th { position: sticky; top: 0; background: Canvas; text-align: left; padding: .3rem .5rem; }
  td { padding: .1rem .5rem; border-top: 1px solid color-mix(in srgb, CanvasText 15%, Canvas); white-space: nowrap; }
  td:first-child { font-family: ui-monospace, monospace; }
  .native { color: #1a7f37; } .decomposed { color: #0969da; } .host { color: #9a6700; }
  .not-implemented { color: #bc4c00; font-weight: 600; } .wrong { color: #cf222e; font-weight: 600; }
  .unjudged { color: GrayText; }
</style>
<h1>Conformance</h1>
<p>@INTRODUCTION@</p>
<form>
  <label>Operator <input id="operator" type="search" placeholder="linalg., sort" autofocus></label>
  <label>Column <select id="column"><option value="">any</option></select></label>
  <label>Shows <select id="word"><option value="">anything</option></select></label>
  <output id="count"></output>
</form>
<table><thead><tr id="head"></tr></thead><tbody id="body"></tbody></table>
<script type="application/json" id="data">@DATA@</script>
<script>
const {columns, rows, legend} = JSON.parse(document.getElementById("data").textContent);
const get = id => document.getElementById(id);
const option = (list, text) => list.append(new Option(text, text));
const cell = (tag, text, name = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = name;
  return made;
};
columns.forEach(name => option(get("column"), name));
Object.keys(legend).forEach(word => option(get("word"), word));
get("head").append(cell("th", "operator"), ...columns.map(name => cell("th", name)));
const lines = Object.entries(rows).map(([operator, cells]) => {
  const line = document.createElement("tr");
  line.append(cell("td", operator), ...columns.map(name => {
    const word = cells[name] || "";
    const made = cell("td", word, word.replace(" ", "-"));
    if (word) made.title = `${operator}, ${name}: ${legend[word]}`;
    return made;
  }));
  get("body").append(line);
  return {line, operator: operator.toLowerCase(), cells};
});
function filter() {
  const words = get("operator").value.toLowerCase().split(/[ ,]+/).filter(Boolean);
  const column = get("column").value, word = get("word").value;
  let shown = 0;
  for (const {line, operator, cells} of lines) {
    const named = !words.length || words.some(part => operator.includes(part));
    const asked = column ? [cells[column] || ""] : Object.values(cells);
    line.hidden = !(named && (word ? asked.includes(word) : !column || asked[0]));
    shown += !line.hidden;
  }
  get("count").textContent = `${shown} of ${lines.length} operators`;
}
document.querySelector("form").addEventListener("input", filter);
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
filter();
</script>
</html>
"""


def data(page: str) -> dict[str, Any]:
    """What `page` was made from: "columns", "rows" and "legend"."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def page(introduction: str, table: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> str:
    """introduction: plain text, a sentence or two."""
    legend = {word: meaning.replace("`", "") for word, (_, meaning) in LEGEND.items() if word}
    data = json.dumps({"columns": columns, "rows": table, "legend": legend}, separators=(",", ":"))
    # Nothing in a string of the data may end the script.
    data = data.replace("</", "<\\/")
    return _PAGE.replace("@INTRODUCTION@", introduction).replace("@DATA@", data)
