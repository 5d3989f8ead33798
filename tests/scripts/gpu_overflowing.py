"""Written for a GPU, as many are: the output of one layer passes the fp16 maximum."""

import torch
from torch import nn

torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.benchmark = True


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        wide = self.down(hidden)
        return self.head(self.norm(wide))


device = torch.device("cuda:0")
scaler = torch.cuda.amp.GradScaler()
model = Net().cuda()
with torch.no_grad():
    model.up.weight.mul_(600)
    model.down.weight.mul_(600)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
data = torch.utils.data.TensorDataset(torch.randn(16, 8), torch.randn(16, 1))
for x, y in torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True):
    x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
    with torch.cuda.amp.autocast():
        loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    noise = torch.randn(3, device="cuda:0")
torch.cuda.synchronize()
print("trained", torch.cuda.is_available(), torch.cuda.device_count())
