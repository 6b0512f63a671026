"use strict";
// Answers again in the page, as decide/decision.py and answer/options.py do: what_if.py says what
// the data are. A test compares the answers with those of the command line, in a real browser.
async function answerAgain(section) {
  const form = section.querySelector("form");
  const parts = [...section.querySelectorAll("[data-part]")];
  const part = (name) => parts.find((each) => each.dataset.part === name);
  const data = JSON.parse(section.querySelector("script").textContent);
  const { users, borne, n_draws: n, is_rate: isRate } = data;
  const isSimulated = Boolean(borne || data.needed);
  const names = Object.keys(data.profiles), N_LIMITS = data.limits.length;
  const N_LOADS = borne ? borne.n_anchors : users[0].length;
  const curves = data.curves ? await unpack() : [];

  async function unpack() {
    const packed = Uint8Array.from(atob(data.curves), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const values = new Uint16Array(bytes.length / 2);
    for (let i = 0; i < values.length; i++) {
      const before = Math.floor(i / n) % N_LOADS ? values[i - n] : values[i - n * N_LOADS] ?? 0;
      values[i] = before + bytes[i] + 256 * bytes[i + values.length];
    }
    return values;
  }
  const place = (curve, profile, load, draw) =>
    ((curve * names.length + profile) * N_LOADS + load) * n + draw;
  const placeBorne = (profile, limit, anchor, draw) =>
    ((profile * borne.n_limits + limit) * N_LOADS + anchor) * n + draw;
  const rising = (a, b) => a - b;
  const distinct = (values) => [...new Set(values)].sort(rising);
  const spans = (low, high, count) => Array.from({ length: count }, (_, i) =>
    10 ** (Math.log10(low) + (i * (Math.log10(high) - Math.log10(low))) / (count - 1)));

  // How many of the loads a profile is tried at, before one that was measured to break a limit.
  function triedLoads(name, asked) {
    const limits = data.limits.map((limit, i) => limit.offered[asked.limits[i]]);
    const broken = data.broken.filter((point) =>
      point.profile === name && point.ms.some((ms, i) => ms !== null && ms / limits[i] > 1));
    const least = Math.min(...broken.map((point) => point.users));
    return users[names.indexOf(name)].filter((each) => each < least).length;
  }

  // By draw, how many of the loads keep all limits.
  function loadsMet(profile, tried, asked) {
    const met = new Array(n).fill(tried);
    for (let limit = 0; limit < N_LIMITS; limit++)
      for (let draw = 0; draw < n; draw++) {
        let load = 0;
        while (load < met[draw] && curves[place(limit, profile, load, draw)] <= asked.limits[limit]) load++;
        met[draw] = load;
      }
    return met;
  }

  function replicasNeeded(profile, met, asked) {
    return met.map((count, draw) => {
      if (!count) return Infinity;
      if (!isRate) return Math.ceil(asked.load / users[profile][count - 1]);
      if (data.is_measured) return Math.ceil(asked.load / data.carried[profile][count - 1]);
      const step = curves[place(N_LIMITS, profile, count - 1, draw)] + data.steps_from;
      return Math.ceil(asked.load / 2 ** (step / data.rate_steps));
    });
  }

  // The limits that are asked for, among those of all metrics.
  function rowsOfLimits(asked) {
    let first = 0;
    return data.limits.map(({ offered }, limit) => {
      const row = first + asked.limits[limit];
      first += offered.length;
      return row;
    });
  }

  // Replicas that bear a rate, by draw, as BorneRates.at and whole_replicas of Python.
  function replicasBearing(profile, asked) {
    const position = Math.log(asked.load) / Math.log(borne.anchor_step);
    const low = Math.floor(position + 1e-9), share = Math.max(position - low, 0);
    const rows = rowsOfLimits(asked);
    const stepsAt = (anchor, draw) => {
      const least = Math.min(...rows.map((row) =>
        curves[placeBorne(profile, row, anchor - borne.first_anchor, draw)]));
      return least ? least + borne.steps_from : -Infinity;
    };
    return Array.from({ length: n }, (_, draw) => {
      let steps = stepsAt(low, draw);
      if (share > 1e-9) steps = (1 - share) * steps + share * stepsAt(low + 1, draw);
      const needed = Math.max(Math.ceil(asked.load / 2 ** (steps / borne.rate_steps) - 1e-9), 1);
      return needed <= borne.most_replicas ? needed : Infinity;
    });
  }

  function simulatedReplicas(profile, asked) {
    return borne ? replicasBearing(profile, asked) : data.needed[profile].map((each) => each ?? Infinity);
  }

  function competing(needed, asked) {
    if (!isRate) return distinct(users.flat().map((each) => Math.ceil(asked.load / each)));
    const counts = distinct(needed.flat().filter(Number.isFinite));
    if (counts.length <= data.most_counts) return counts.length ? counts : [1];
    return distinct(spans(counts[0], counts.at(-1), data.most_counts).map(Math.round));
  }

  function usersEach(profile, tried, count, asked) {
    if (!isRate) return Math.ceil(asked.load / count);
    const load = data.carried[profile].slice(0, tried).findIndex((each) => each >= asked.load / count);
    return users[profile].at(load);
  }

  function weigh(asked) {
    const all = asked.profiles.map(({ name, price }) => {
      if (isSimulated)
        return { name, price, needed: simulatedReplicas(names.indexOf(name), asked), usersHi: null };
      const tried = triedLoads(name, asked), profile = names.indexOf(name);
      const met = loadsMet(profile, tried, asked);
      const most = met.map((count) => (count ? users[profile][count - 1] : 0)).sort(rising);
      const needed = replicasNeeded(profile, met, asked);
      return { name, price, profile, tried, needed, usersHi: most[Math.ceil(0.95 * n) - 1] };
    });
    const counts = competing(all.map((each) => each.needed), asked);
    const cheapest = Array.from({ length: n }, (_, draw) =>
      Math.min(...all.map((each) => each.needed[draw] * each.price)));
    return all.flatMap(({ name, price, profile, tried, needed, usersHi }) => counts.map((replicas) => {
      const usd = Math.round(price * replicas * 1e9) / 1e9;
      let met = 0, worth = 0;
      for (let draw = 0; draw < n; draw++)
        if (needed[draw] <= replicas) {
          met++;
          worth += data.worth - usd / cheapest[draw];
        }
      const each = data.is_measured || isSimulated ? usersHi : usersEach(profile, tried, replicas, asked);
      return {
        gpu_profile_id: name, replicas, users_per_replica: each,
        usd_per_hour: usd, usersHi,
        probability_met: met / n, worth: worth / n,
      };
    }));
  }

  // The least by each key in turn; of equals the first. A profile's name is its last key.
  const order = (...keys) => (a, b) => {
    for (const key of keys) if (key(a) !== key(b)) return key(a) < key(b) ? -1 : 1;
    return 0;
  };
  const price = (row) => row.usd_per_hour, unlikely = (row) => -row.probability_met;
  const name = (row) => row.gpu_profile_id, devices = (row) => row.replicas * parseInt(row.gpu_profile_id, 10);
  // Hundredths of a probability as they are shown, 100 above 0.99: wording.py.
  const hundredths = (p) => p >= 0.995 ? 100 : Math.floor(100 * p + 1e-9);
  const shown = (row) => hundredths(row.probability_met);

  function decide(asked) {
    const options = weigh(asked), isSafe = options.some((row) => row.probability_met >= data.safe);
    // A simulated rate is sized as `sextant capacity` does: safely, where that can be.
    const risk = asked.risk === null && isSimulated && isSafe ? 1 - data.safe : asked.risk;
    const least = risk === null ? data.fair : 1 - risk;
    const keys = risk === null ? [(row) => -row.worth, price, unlikely, devices, name] : [price, unlikely, devices, name];
    const chosen = options.filter((row) => row.probability_met >= least).sort(order(...keys))[0];
    const profiles = asked.profiles.map((each) => {
      const own = options.filter((row) => row.gpu_profile_id === each.name
        && (chosen?.gpu_profile_id !== each.name || row.replicas === chosen.replicas));
      const safe = own.filter((row) => row.probability_met >= (asked.risk === null ? data.safe : 1 - asked.risk));
      const best = safe.sort(order(price))[0] ?? own.sort(order(unlikely, price))[0];
      const status = best.probability_met < data.listed ? "too_slow" : "unsure";
      return { ...best, status: safe.length ? "meets" : status };
    });
    const leastShown = asked.risk === null ? data.listed : Math.min(data.listed, 1 - asked.risk);
    let likeliest = -1;
    const frontier = options
      .filter((row) => row.probability_met >= leastShown && row.users_per_replica <= row.usersHi)
      .sort(order(price, unlikely))
      .filter((row) => shown(row) > likeliest && (likeliest = shown(row), true));
    return { chosen: chosen ?? null, options: frontier, profiles };
  }

  const plural = (count, noun) => `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
  const short = (value) => (value >= 100 ? Math.round(value) : Number(value.toPrecision(3))).toLocaleString("en-US");
  const chance = (p) => ({ 100: "> 0.99", 0: "< 0.01" })[hundredths(p)] ?? (hundredths(p) / 100).toFixed(2);
  const cents = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
  const money = (usd) => `${usd > 0 && usd < 0.1 ? Number(usd.toPrecision(3)) : usd.toLocaleString("en-US", cents)} USD/h`;
  const plan = (row) => `${plural(row.replicas, "replica")} × ${row.gpu_profile_id} = ${money(row.usd_per_hour)}`;

  function asWords({ chosen }, asked) {
    const all = { 1: "the limit", 2: "both limits" }[N_LIMITS] ?? "all limits";
    if (data.is_measured) return chosen ? plan(chosen) : `no GPU profile meets ${all}`;
    if (chosen) return `${plan(chosen)}; meets ${all} with probability ${chance(chosen.probability_met)}`;
    if (asked.risk === null) return `no option is likely to meet ${all}`;
    return `no GPU profile meets ${all} with probability ${Number((1 - asked.risk).toPrecision(10))} or more`;
  }

  function ofReplica({ chosen }, asked) {
    if (!chosen) return "";
    const month = `${short(data.hours_per_month * chosen.usd_per_hour)} USD a month of ${data.hours_per_month} hours.`;
    if (isSimulated) return `A replica gets ${short(asked.load / chosen.replicas)} of ${short(asked.load)} requests/s. ${month}`;
    const row = names.indexOf(chosen.gpu_profile_id);
    const load = users[row].findIndex((each) => each >= chosen.users_per_replica), each = plural(chosen.users_per_replica, "user");
    const latencies = data.limits.map((limit, i) =>
      `${limit.label} ${short(data.medians_ms[limit.key][row][load])} ms (limit ${limit.offered[asked.limits[i]]})`);
    const tried = users[row][load] > chosen.users_per_replica ? ` (latencies of ${users[row][load].toLocaleString("en-US")} users, the nearest load above that was computed)` : "";
    const gets = isRate ? `${short(asked.load / chosen.replicas)} requests/s, about ${each} at once` : each + tried;
    const has = data.is_measured ? `serves ${each}` : `gets ${gets}`;
    return `A replica ${has}: ${latencies.join("; ")}. ${month}`;
  }

  function drawn(tag, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  }

  // The range of the axis of probabilities: that of the options, on round numbers.
  function chanceTicks(chances) {
    const least = Math.max(Math.min(...chances) - 0.01, 0), step = [0.01, 0.02, 0.05, 0.1, 0.25]
      .find((each) => (1 - least) / each <= 4.5) ?? 0.25;
    const first = Math.floor(least / step + 1e-9);
    return Array.from({ length: Math.round(1 / step) - first + 1 }, (_, i) => (first + i) * step);
  }

  function chart({ chosen, options, profiles }) {
    const isListed = (row) => options.some((one) => name(one) === name(row) && one.replicas === row.replicas);
    const others = profiles.filter((row) => row.probability_met >= data.listed && !isListed(row));
    const marked = [...options, ...others], prices = marked.map(price);
    // Where all are as likely, or there is one alone, a picture tells nothing.
    const chances = marked.map(shown), isTelling = Math.max(...chances) > Math.min(...chances);
    part("chart").closest("figure").hidden = !isTelling;
    if (!isTelling) return;
    const low = Math.min(...prices) / 1.2, high = Math.max(...prices) * 1.2;
    const ticks = chanceTicks(marked.map((row) => row.probability_met)), base = ticks[0];
    const x = (usd) => 56 + (490 * Math.log(usd / low)) / Math.log(high / low);
    const y = (p) => 270 - (240 * (p - base)) / (1 - base || 1);
    const marks = ticks.flatMap((p) => [
      drawn("line", { x1: 56, x2: 546, y1: y(p), y2: y(p), class: "grid" }),
      drawn("text", { x: 50, y: y(p) + 4, "text-anchor": "end" }, Number(p.toFixed(2)))]);
    const few = high / low > 2000 ? [1] : [1, 2, 5];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++)
      for (const usd of few.map((digit) => digit * 10 ** decade).filter((each) => each > low && each < high))
        marks.push(drawn("text", { x: x(usd), y: 288, "text-anchor": "middle" }, Number(usd.toPrecision(1))));
    marks.push(drawn("text", { x: 301, y: 310, "text-anchor": "middle", class: "axis" }, "Price (USD/h)"),
      drawn("text", { x: 20, y: 14, class: "axis" }, "Probability to meet the SLO"));
    marks.push(drawn("polyline", { points: options.map((row) => `${x(price(row))},${y(row.probability_met)}`).join(" ") }));
    const dot = (row, look) => drawn("circle", { cx: x(price(row)), cy: y(row.probability_met), ...look });
    marks.push(...others.map((row) => dot(row, { r: 4, class: "other" })));
    marks.push(...options.map((row) => dot(row, { r: 4, class: "best" })));
    if (chosen) marks.push(dot(chosen, { r: 9, class: "ring" }));
    // The answer's name first; a name that would lie on another one is left out.
    const named = [];
    for (const row of [...(chosen ? [chosen] : []), ...options]) {
      const across = x(price(row)), up = y(row.probability_met), isRight = across > 400;
      if (named.some((one) => Math.abs(one.across - across) < 130 && Math.abs(one.up - up) < 15)) continue;
      named.push({ across, up });
      marks.push(drawn("text", { x: across + (isRight ? -12 : 12), y: up + 17, "text-anchor": isRight ? "end" : "start",
        class: "name" }, `${row.replicas} × ${name(row)}`));
    }
    part("chart").replaceChildren(...marks);
  }

  const input = (name) => form.elements[name];
  function asked() {
    const profiles = names.map((name) => ({ name, price: input(`price ${name}`).valueAsNumber }));
    // Measurements are certain: any risk below 1 asks for what they show to hold.
    const risk = data.is_measured ? 0.5 : input("risk").valueAsNumber;
    return {
      load: Number(input("load").value || NaN), risk: Number.isNaN(risk) ? null : risk,
      limits: data.limits.map((limit) => Number(input(limit.key).value)),
      profiles: profiles.filter(({ name }) => input(`on ${name}`).checked),
    };
  }

  // A page without steps holds what was simulated, of one rate.
  function beyond(load) {
    const { offered } = data.load, [least, most] = [offered[0], offered.at(-1)];
    const known = least === most ? `${least} requests/s alone` : `${least} to ${most} requests/s`;
    return `This page knows ${known}. For ${load} ask sextant recommend.`;
  }

  function update() {
    data.limits.forEach((limit) => {
      const words = `${limit.offered[input(limit.key).value]} ms`;
      part(`${limit.key} words`).textContent = words;
      input(limit.key).setAttribute("aria-valuetext", words);
    });
    const wrong = form.querySelector("input:invalid"), question = asked();
    const isBeyond = isSimulated && (question.load < data.load.offered[0] || question.load > data.load.offered.at(-1));
    const fix = wrong ? wrong.dataset.fix : isBeyond ? beyond(question.load)
      : question.profiles.length ? "" : "Choose one GPU profile or more.";
    section.classList.toggle("stale", Boolean(fix));
    if (fix) return void (part("answer").textContent = fix);
    const found = decide(question);
    part("answer").textContent = asWords(found, question);
    part("replica").textContent = ofReplica(found, question);
    if (part("chart")) chart(found);
    for (const each of names) {
      const row = found.profiles.find((one) => one.gpu_profile_id === each);
      const is = row?.status, price = row ? money(row.usd_per_hour) : "";
      part(`plan ${each}`).textContent = !row ? "left out" : is === "too_slow" ? "too slow"
        : `${is === "unsure" ? "unsure: " : ""}${plural(row.replicas, "replica")}, ${price}`;
      part(`chance ${each}`).textContent = row && !data.is_measured ? chance(row.probability_met) : "";
    }
    section.dataset.answer = JSON.stringify(found);
  }

  const slider = input("load slider"), { offered } = data.load;
  slider?.addEventListener("input", () => { input("load").value = offered[slider.value]; });
  form.addEventListener("input", ({ target }) => {
    const next = offered.findIndex((each) => each >= Number(input("load").value));
    if (slider && target !== slider) slider.value = next < 0 ? offered.length - 1 : next;
    slider?.setAttribute("aria-valuetext", input("load").value);
    update();
  });
  form.addEventListener("reset", () => setTimeout(() => { update(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
  section.hidden = false;
}
document.querySelectorAll(".what-if").forEach(answerAgain);
