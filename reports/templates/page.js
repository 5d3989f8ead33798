(function () {
  "use strict";
  document.querySelectorAll("#loss-scale-explorer").forEach(function (figure) {
    var shares = JSON.parse(figure.querySelector("script.shares").textContent);
    var svg = figure.querySelector("svg");
    var column = Number(svg.dataset.column), first = Number(svg.dataset.power);
    var frames = figure.querySelectorAll("rect.window, rect.subnormal");
    var label = figure.querySelector("label"), input = figure.querySelector("input");
    label.hidden = false;
    input.addEventListener("input", function () {
      var power = Number(input.value);
      frames.forEach(function (frame) {
        frame.setAttribute("transform", "translate(" + (first - power) * column + " 0)");
      });
      figure.querySelector("output").textContent = String(power);
      figure.querySelector(".said").textContent = shares[power][1];
    });
  });
  document.querySelectorAll("pre.paste").forEach(function (block) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", function () {
      var text = block.textContent;
      function done() { button.textContent = "copied"; }
      function byHand() {
        var area = document.createElement("textarea");
        area.value = text;
        document.body.appendChild(area);
        area.select();
        if (document.execCommand("copy")) { done(); }
        area.remove();
        button.focus();
      }
      if (navigator.clipboard && window.isSecureContext) {
        navigator.clipboard.writeText(text).then(done, byHand);
      } else {
        byHand();
      }
    });
    var frame = block.parentElement, head = frame.previousElementSibling;
    if (head && head.matches(".pasting")) { head.append(button); } else { frame.before(button); }
  });
})();
