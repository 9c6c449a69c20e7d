"use strict";
// Shows one kernel's details at a time, marks its box and wires, and finds operators. All texts stay as they are in the page.
(() => {
  const details = [...document.querySelectorAll(".kernel-details")];
  if (!details.length) return;
  const isWide = () => window.matchMedia("(min-width: 900px)").matches;
  const boxes = [...document.querySelectorAll(".picture .kernel")];
  const links = boxes.map((box) => box.parentNode);
  const wires = [...document.querySelectorAll(".wire")];
  const numberOf = (hash) => {
    const found = /^#kernel-(\d+)$/.exec(hash);
    return found && Number(found[1]) >= 1 && Number(found[1]) <= details.length ? Number(found[1]) : 0;
  };
  let selected = 0;

  function select(number) {
    if (number === selected) return;
    const mark = (place, on) => {
      if (place < 1) return;
      details[place - 1].classList.toggle("on", on);
      boxes[place - 1].classList.toggle("on", on);
      if (on) links[place - 1].setAttribute("aria-current", "true");
      else links[place - 1].removeAttribute("aria-current");
    };
    mark(selected, false);
    mark(number, true);
    selected = number;
    const text = String(number);
    for (const wire of wires) wire.classList.toggle("on", wire.dataset.from === text || wire.dataset.to === text);
  }

  const heaviest = boxes.findIndex((box) => box.hasAttribute("data-heaviest"));
  select(numberOf(location.hash) || heaviest + 1 || 1);

  window.addEventListener("hashchange", () => {
    const number = numberOf(location.hash);
    if (!number) return;
    select(number);
    details[number - 1].scrollIntoView({ block: "nearest" });
  });
  links.forEach((link, place) => {
    link.addEventListener("click", (event) => {
      select(place + 1);
      if (!isWide()) return; // On a narrow screen the link leads to the details, below the picture.
      event.preventDefault();
      history.replaceState(null, "", link.getAttribute("href"));
    });
    link.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      const next = step && links[place + step];
      if (!next) return;
      event.preventDefault();
      next.focus();
      select(place + step + 1);
    });
  });

  const finder = document.querySelector(".finder");
  const field = document.getElementById("find");
  const found = document.getElementById("found");
  let index = null;
  finder.hidden = false;
  field.addEventListener("input", () => {
    index ??= details.map((each) => ({
      name: each.querySelector("h3").textContent.toLowerCase(),
      rows: [...each.querySelectorAll("details tbody tr")].map((row) => [row, row.textContent.toLowerCase()]),
    }));
    const wanted = field.value.trim().toLowerCase();
    let operators = 0, kernels = 0, first = 0;
    index.forEach((kernel, place) => {
      const isNamed = kernel.name.includes(wanted);
      let count = 0;
      for (const [row, text] of kernel.rows) {
        const isHit = text.includes(wanted);
        row.hidden = !isHit && !isNamed;
        count += isHit;
      }
      const isHit = isNamed || count > 0;
      operators += count;
      kernels += isHit;
      if (isHit) first ||= place + 1;
      boxes[place].classList.toggle("dim", !isHit);
    });
    found.textContent = wanted ? `${operators} ${operators === 1 ? "operator" : "operators"} in ${kernels} ${kernels === 1 ? "kernel" : "kernels"}` : "";
    if (wanted && first) {
      select(first);
      details[first - 1].querySelector("details").open = true;
      boxes[first - 1].scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  });
  window.addEventListener("beforeprint", () => { for (const box of boxes) box.classList.remove("dim"); });
})();

// Copies the summary, and saves the card as a picture. Both stay on this machine.
(() => {
  const share = document.querySelector(".share");
  if (!share) return;
  share.hidden = false;
  const told = document.getElementById("shared");

  document.getElementById("copy").addEventListener("click", async () => {
    const field = document.getElementById("markdown");
    try {
      await navigator.clipboard.writeText(field.value);
    } catch { // Some browsers keep the clipboard from pages in files.
      field.hidden = false;
      field.select();
      if (!document.execCommand("copy")) return void (told.textContent = "Press Ctrl+C to copy the text below.");
      field.hidden = true;
    }
    told.textContent = "Copied.";
  });

  document.getElementById("save").addEventListener("click", () => {
    const card = document.querySelector(".card").cloneNode(true);
    const style = document.createElementNS(card.namespaceURI, "style");
    style.textContent = document.querySelector("head style").textContent;
    card.prepend(style);
    const drawn = new Image();
    drawn.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * drawn.width;
      canvas.height = 2 * drawn.height;
      const pen = canvas.getContext("2d");
      pen.scale(2, 2);
      pen.drawImage(drawn, 0, 0);
      const link = document.createElement("a");
      link.download = `${document.querySelector("h1").textContent.replace(/[^\w.-]+/g, "-")}.png`;
      link.href = canvas.toDataURL("image/png");
      link.click();
      told.textContent = `Saved as ${link.download}.`;
    });
    drawn.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(card))}`;
  });
})();
