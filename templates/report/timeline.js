"use strict";
// Runs of months: a plot, and two runs, nights or commits side by side. page.js calls it.
globalThis.drawTimelines = ({ timelines, node, Rows }) => {
  const HEIGHT = 330, LEFT = 62, RIGHT = 14, TOP = 26, BOTTOM = 30, NEAR = 24;
  const TICKS = 6;
  const four = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
  function signed(percent) {
    const text = Math.abs(percent).toFixed(1);
    return `${Number(text) === 0 ? "" : percent < 0 ? "−" : "+"}${text} %`;
  }
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  function median(values) {
    const sorted = [...values].sort((x, y) => x - y), middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  // About so many round numbers of a range.
  function ticks(low, high) {
    const rough = (high - low) / TICKS, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find((each) => each * power >= rough) ?? 10);
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(n * step);
    return found;
  }

  class Timeline {
    constructor(element, payload) {
      this.payload = payload;
      this.runs = payload.runs;
      this.size = payload.runs.id.length;
      this.find = (name) => element.querySelector(name);
      this.chart = this.find(".chart");
      this.all = this.find(".all");
      this.blank = this.all.querySelector(".large").cloneNode(true);
      this.next = "a";
      this.build();
      this.compareBy();
      this.draw();
      new ResizeObserver(() => { if (this.chart.clientWidth !== this.width) this.draw(); }).observe(this.chart);
    }

    // What the payload says of a run.
    time(i) {
      const at = this.runs.at[i];
      return typeof at === "number" ? new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ") : at;
    }
    commit(i) {
      const found = this.payload.commits[this.runs.commit[i]];
      return found.id.slice(0, 10) || "outside a repository";
    }
    remark(i) { return this.payload.strings[this.runs.remark[i]]; }
    number(value) { return value === null || value === undefined ? "–" : `${four(value)} ${this.metric.unit}`.trim(); }

    build() {
      const { metrics, commits } = this.payload;
      const named = new URLSearchParams(location.hash.slice(1)).get("metric");
      metrics.forEach((metric, i) => this.find(".metric").append(node("option", { value: i }, metric.title)));
      this.metric = metrics.find((metric) => metric.name === named) ?? metrics[0];
      this.find(".metric").value = metrics.indexOf(this.metric);
      const nights = this.size ? this.runs.night[this.size - 1] + 1 : 0;
      const ranges = [0, 180, 90, 30, 7].filter((range) => range < nights);
      for (const range of ranges) this.find(".range").append(node("option", { value: range }, range ? `the last ${range} nights` : count(nights, "night")));
      const by = [["night", "nights"], ["run", "runs"], ["commit", "commits"]];
      for (const [value, text] of by) {
        if (value !== "commit" || commits.some((each) => each.id)) this.find(".by").append(node("option", { value }, text));
      }
      this.find(".metric").addEventListener("change", (event) => { this.metric = metrics[event.target.value]; this.compareBy(); this.draw(); this.list(); });
      this.find(".range").addEventListener("change", () => this.draw());
      this.find(".by").addEventListener("change", () => { this.compareBy(); this.draw(); });
      for (const side of ["a", "b"]) this.find(`select.${side}`).addEventListener("change", () => this.compare());
      this.find(".swap").addEventListener("click", () => {
        const a = this.find("select.a"), b = this.find("select.b");
        [a.value, b.value] = [b.value, a.value];
        this.compare();
      });
      this.all.addEventListener("toggle", () => this.list());
      this.chart.addEventListener("pointermove", (event) => this.hover(event));
      this.chart.addEventListener("pointerleave", () => { this.hint.hidden = true; });
      this.chart.addEventListener("click", (event) => this.pick(event));
    }

    // The nights, runs or commits that can be compared.
    compareBy() {
      const by = this.find(".by").value, keys = { night: this.runs.night, commit: this.runs.commit }[by];
      const groups = new Map();
      for (let i = 0; i < this.size; i += 1) {
        const key = keys ? keys[i] : i;
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(i);
      }
      this.groups = [...groups.values()];
      this.groupOf = [];
      this.groups.forEach((runs, group) => { for (const i of runs) this.groupOf[i] = group; });
      const dates = this.groups.map((runs) => this.time(runs[0]));
      const texts = this.groups.map((runs, group) => {
        const day = dates[group].slice(0, 10), alone = by !== "run" && dates[group - 1]?.slice(0, 10) !== day && dates[group + 1]?.slice(0, 10) !== day;
        const when = alone ? day : dates[group], commit = this.commit(runs[0]);
        const dirty = this.payload.commits[this.runs.commit[runs[0]]].dirty ? " with changes" : "";
        const name = by === "commit" ? `${commit}${dirty}, ${when}` : `${when}, ${commit}`;
        return `${name}: ${this.number(this.level(runs, this.metric))}`;
      });
      for (const side of ["a", "b"]) this.find(`select.${side}`).replaceChildren(...texts.map((text, value) => node("option", { value }, text)));
      // The nights before and after the last change, or the last two.
      const change = this.metric.changes.at(-1), last = this.groups.length - 1;
      const after = change ? this.groupOf[change.run] : last;
      this.find("select.a").value = Math.max(0, after - 1);
      this.find("select.b").value = Math.max(0, after);
      this.compare();
    }
    used(runs, metric) { return runs.filter((i) => this.runs.used[i] && metric.values[i] !== null); }
    level(runs, metric) {
      const used = this.used(runs, metric);
      return used.length ? median(used.map((i) => metric.values[i])) : null;
    }
    chosen() { return ["a", "b"].map((side) => this.groups[this.find(`select.${side}`).value] ?? []); }

    // Side by side.
    compare() {
      const [a, b] = this.chosen();
      const [started, counted, ...facts] = this.facts(a, b);
      const rows = [started, counted, ...this.payload.metrics.map((metric) => this.numbers(metric, a, b)), ...facts];
      const head = node("tr", {}, ...["", "A", "B", ""].map((text) => node("th", { scope: "col" }, text)));
      const body = rows.map(([title, left, right, last, differs]) => node(
        "tr", { class: differs ? "differs" : "" },
        node("th", { scope: "row" }, title),
        ...[left, right, last].map((each) => node("td", {}, ...[each].flat())),
      ));
      this.find(".pair").replaceChildren(node("table", {}, node("thead", {}, head), node("tbody", {}, ...body)));
      this.mark();
    }
    facts(a, b) {
      const each = (name, of) => {
        const values = [a, b].map((runs) => [...new Set(runs.map(of))].filter((text) => text !== "" && text !== undefined));
        const texts = values.map((found) => found.length > 3 ? `${found.slice(0, 3).join(", ")} and ${found.length - 3} more` : found.join(", ") || "–");
        return [name, ...texts, "", texts[0] !== texts[1]];
      };
      const rows = [["started", ...[a, b].map((runs) => this.span(runs)), "", false]];
      rows.push(["runs that count", ...[a, b].map((runs) => `${runs.filter((i) => this.runs.used[i]).length} of ${runs.length}`), "", false]);
      const commits = [a, b].map((runs) => [...new Set(runs.map((i) => this.runs.commit[i]))]);
      const [old, fresh] = [a, b].map((runs) => runs.length ? this.payload.commits[this.runs.commit[runs.at(-1)]] : {});
      const between = old.known && fresh.known && old.id !== fresh.id && this.payload.compare;
      const address = between && this.payload.compare.replace("{old}", old.id).replace("{new}", fresh.id);
      rows.push(["recipe's commit", ...commits.map((all) => this.commits(all)), address ? this.link(address, "all commits between") : "", commits[0].join() !== commits[1].join()]);
      rows.push(each("program", (i) => this.payload.strings[this.runs.program[i]]));
      const names = new Set([...a, ...b].flatMap((i) => Object.keys(this.payload.surroundings[this.runs.surroundings[i]])));
      for (const name of [...names].sort()) {
        const row = each(name, (i) => this.payload.surroundings[this.runs.surroundings[i]][name]);
        if (this.payload.may_be_unknown.includes(name) && row.slice(1, 3).includes("–")) row[4] = false;
        rows.push(row);
      }
      rows.push(each("remarks", (i) => this.remark(i)), each("run", (i) => this.runs.id[i]));
      rows.at(-1)[4] = rows.at(-2)[4] = false;
      return rows;
    }
    numbers(metric, a, b) {
      const [left, right] = [a, b].map((runs) => this.level(runs, metric));
      const text = (value) => value === null ? "–" : `${four(value)} ${metric.unit}`.trim();
      const percent = left && right !== null ? 100 * (right / left - 1) : null;
      const tone = percent === null || Math.abs(percent) < 0.05 ? "" : percent > 0 ? "bad" : "good";
      return [metric.title, text(left), text(right), percent === null ? "–" : node("span", { class: tone }, signed(percent)), false];
    }
    span(runs) {
      if (!runs.length) return "–";
      const first = this.time(runs[0]), last = this.time(runs.at(-1));
      return first === last ? `${first} UTC` : `${first} to ${first.slice(0, 10) === last.slice(0, 10) ? last.slice(11) : last} UTC`;
    }
    commits(indices) {
      const shown = indices.slice(0, 3).flatMap((index, i) => {
        const { id, dirty, known } = this.payload.commits[index];
        const text = node("code", {}, id.slice(0, 10) || "outside a repository");
        const address = known && this.payload.commit.replace("{id}", id);
        return [...(i ? [", "] : []), address ? this.link(address, text) : text, ...(dirty ? [" with changes"] : [])];
      });
      return indices.length > 3 ? [...shown, ` and ${indices.length - 3} more`] : shown;
    }
    link(href, text) { return node("a", { href, rel: "noreferrer" }, text); }

    // The plot.
    draw() {
      const range = Number(this.find(".range").value), night = this.runs.night;
      const last = this.size ? night[this.size - 1] : 0;
      this.first = range ? Math.max(0, night.findIndex((each) => each > last - range)) : 0;
      this.width = Math.max(280, this.chart.clientWidth);
      const values = this.metric.values, shown = [];
      for (let i = this.first; i < this.size; i += 1) if (values[i] !== null) shown.push(i);
      const used = shown.filter((i) => this.runs.used[i]).map((i) => values[i]);
      [this.low, this.high] = this.window(used.length ? used : shown.map((i) => values[i]));
      const step = (this.width - LEFT - RIGHT) / Math.max(1, this.size - this.first);
      this.x = (i) => LEFT + (i - this.first + 0.5) * step;
      this.y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * Math.min(1.02, Math.max(-0.02, (value - this.low) / (this.high - this.low)));
      this.shown = shown;
      this.rings = svg("g", {});
      this.hint = node("div", { class: "hint", hidden: "hidden" });
      const radius = shown.length > 400 ? 2.2 : 3.5;
      const parts = [...this.axes(), ...this.events(step), ...shown.map((i) => this.point(i, radius)), ...this.levels(step), this.rings];
      this.chart.replaceChildren(svg("svg", { width: this.width, height: HEIGHT }, ...parts), this.hint);
      const outside = shown.filter((i) => values[i] > this.high || values[i] < this.low).length;
      this.find(".shown").textContent = `${count(shown.length, "run")}${outside ? `, ${outside} outside of the plot` : ""}`;
      this.explain();
      this.mark();
    }
    // The range of the bulk, where a few values would squeeze all others together.
    window(values) {
      if (!values.length) return [0, 1];
      const sorted = [...values].sort((x, y) => x - y), at = (part) => sorted[Math.round(part * (sorted.length - 1))];
      let [low, high] = [sorted[0], sorted.at(-1)];
      const bulk = at(0.99) - at(0.01);
      if (bulk > 0 && high - low > 3 * bulk) [low, high] = [Math.max(low, at(0.01) - 0.5 * bulk), Math.min(high, at(0.99) + 0.5 * bulk)];
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      return [low - room, high + room];
    }
    axes() {
      const parts = [];
      for (const value of ticks(this.low, this.high)) {
        const y = this.y(value);
        parts.push(svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
        parts.push(svg("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, four(Number(value.toPrecision(12)))));
      }
      parts.push(svg("text", { class: "tick", x: LEFT - 8, y: 14, "text-anchor": "end" }, this.metric.unit));
      const runs = this.size - this.first, most = Math.max(2, Math.floor(this.width / 160)), step = Math.max(1, Math.ceil(runs / most));
      const oneDay = runs > 1 && this.time(this.first).slice(0, 10) === this.time(this.size - 1).slice(0, 10);
      for (let i = this.first; i < this.size; i += step) {
        parts.push(svg("text", { class: "tick", x: this.x(i), y: HEIGHT - 8, "text-anchor": i === this.first ? "start" : "middle" }, oneDay ? this.time(i).slice(11) : this.time(i).slice(0, 10)));
      }
      return parts;
    }
    events(step) {
      const parts = [], line = (i, name, title, text) => {
        if (i < this.first) return;
        const x = this.x(i) - step / 2;
        const words = text ? [svg("text", { class: `${name} tick`, x, y: TOP - 8, "text-anchor": x > this.width - 60 ? "end" : "middle" }, text)] : [];
        parts.push(svg("g", {}, svg("title", {}, title), svg("line", { class: name, x1: x, x2: x, y1: TOP - 4, y2: HEIGHT - BOTTOM }), ...words));
      };
      for (const change of this.metric.changes) {
        const percent = change.before ? signed(100 * (change.after / change.before - 1)) : "";
        line(change.run, change.after > change.before ? "worse" : "better", `${this.time(change.run)}: ${this.number(change.before)} before, ${this.number(change.after)} since`, percent);
      }
      for (const alert of this.payload.alerts) if (alert.metric === this.metric.name && alert.run >= 0) line(alert.run, "alert", alert.text, "");
      for (const [i, text] of this.payload.surrounding_changes) {
        if (i < this.first) continue;
        const x = this.x(i) - step / 2, y = HEIGHT - BOTTOM;
        parts.push(svg("path", { class: "surrounding", d: `M${x} ${y - 9}l5 9h-10z` }, svg("title", {}, `${this.time(i)}: ${text}`)));
      }
      return parts;
    }
    point(i, radius) {
      const x = this.x(i), y = this.y(this.metric.values[i]);
      if (this.runs.used[i]) return svg("circle", { class: this.runs.worse[i] ? "run regressed" : "run", cx: x, cy: y, r: radius });
      return svg("path", { class: "unused", d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6` });
    }
    levels(step) {
      const changes = this.metric.changes, starts = [0, ...changes.map((each) => each.run), this.size];
      const medians = [...changes.map((each) => each.before), this.metric.median];
      return medians.flatMap((value, n) => {
        if (value === null || starts[n + 1] <= this.first) return [];
        const y = this.y(value), from = Math.max(this.first, starts[n]);
        return [svg("line", { class: "level", x1: this.x(from) - step / 2, x2: this.x(starts[n + 1]) - step / 2, y1: y, y2: y })];
      });
    }
    explain() {
      const seen = this.shown, has = (test) => seen.some(test);
      const entries = [["blue", "run"], ["orange", "median between changes"]];
      if (has((i) => !this.runs.used[i])) entries.push(["grey", "not used: disturbed, or wrong outputs"]);
      if (has((i) => this.runs.worse[i])) entries.push(["red", "judged worse"]);
      if (this.payload.surrounding_changes.some(([i]) => i >= this.first)) entries.push(["purple", "tools, system or settings changed"]);
      this.find(".legend").replaceChildren(...entries.map(([tone, text]) => node("li", {}, node("span", { class: "swatch", style: `background: var(--${tone})` }), text)));
    }
    // Rings around the runs that are compared.
    mark() {
      if (!this.rings) return;
      const parts = [];
      this.chosen().forEach((runs, side) => {
        const seen = runs.filter((i) => i >= this.first && this.metric.values[i] !== null), name = "ab"[side];
        for (const i of seen) parts.push(svg("circle", { class: `ring ${name}`, cx: this.x(i), cy: this.y(this.metric.values[i]), r: 6.5 }));
        if (seen.length) {
          const top = Math.min(...seen.map((i) => this.y(this.metric.values[i])));
          parts.push(svg("text", { class: `letter ${name}`, x: this.x(seen[0]), y: Math.max(12, top - 11), "text-anchor": "middle" }, name.toUpperCase()));
        }
      });
      this.rings.replaceChildren(...parts);
    }
    nearest(event) {
      const box = this.chart.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      let best = -1, least = NEAR ** 2;
      for (const i of this.shown) {
        const distance = (this.x(i) - x) ** 2 + (this.y(this.metric.values[i]) - y) ** 2;
        if (distance < least) [best, least] = [i, distance];
      }
      return best;
    }
    hover(event) {
      const i = this.nearest(event);
      this.hint.hidden = i < 0;
      if (i < 0) return;
      const spread = this.runs.spread[i], lines = [
        this.number(this.metric.values[i]), `${this.time(i)} UTC`, this.runs.id[i], `recipe ${this.commit(i)}`,
        ...(spread === null ? [] : [`${spread} % between its starts`]), this.remark(i),
      ];
      this.hint.replaceChildren(...lines.filter(Boolean).map((text) => node("div", {}, text)));
      const left = this.x(i) > this.width / 2;
      this.hint.style.left = left ? "" : `${this.x(i) + 12}px`;
      this.hint.style.right = left ? `${this.width - this.x(i) + 12}px` : "";
      this.hint.style.top = `${Math.max(0, Math.min(HEIGHT - 130, this.y(this.metric.values[i]) - 20))}px`;
    }
    pick(event) {
      const i = this.nearest(event);
      if (i < 0) return;
      this.find(`select.${this.next}`).value = this.groupOf[i];
      this.next = this.next === "a" ? "b" : "a";
      this.compare();
    }

    // All runs, once they are asked for.
    list() {
      if (!this.all.open) return;
      const places = new Map(), place = (text) => places.get(text) ?? places.set(text, places.size).get(text);
      const rows = [...this.runs.id.keys()].map((i) => {
        const value = this.metric.values[i], known = this.payload.commits[this.runs.commit[i]];
        const address = known.known ? this.payload.commit.replace("{id}", known.id) : "";
        return [place(this.time(i)), value, this.runs.spread[i], place(this.commit(i)), place(this.remark(i)), place(this.runs.id[i]), place(address)];
      }).reverse();
      const text = { type: "text", strings: true };
      const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(this.metric.median) || 1)));
      const fresh = this.blank.cloneNode(true);
      this.all.querySelector(".large").replaceWith(fresh);
      new Rows(fresh, {
        columns: [
          { title: "started", width: "10rem", ...text },
          { title: `${this.metric.title} ${this.metric.unit}`, type: "number", digits: Math.min(6, digits), width: "9rem" },
          { title: "spread %", type: "number", digits: 2, width: "6rem", wide: true },
          { title: "recipe", type: "link", address: 6, strings: true, width: "8rem" },
          { title: "remark", ...text, width: "16rem", wide: true },
          { title: "run", ...text },
        ],
        sorted: 0, filters: [], searched: [], rows, strings: [...places.keys()],
      });
    }
  }
  for (const element of document.querySelectorAll(".timeline")) new Timeline(element, timelines[element.dataset.key]);
};
